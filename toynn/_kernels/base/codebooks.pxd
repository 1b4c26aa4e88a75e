from libc.stdint cimport uint32_t, uint64_t

# Codebooks: row i has 8 bytes (uint64_t) or 4 (uint32_t).
cdef const uint64_t* IQ2_XXS  # 256 rows, bytes of 8, 25 and 43
cdef const uint64_t* IQ2_XS   # 512
cdef const uint64_t* IQ2_S    # 1024
cdef const uint32_t* IQ3_XXS  # 256, bytes of 4, 12, 20, .., 52, 62
cdef const uint32_t* IQ3_S    # 512, bytes of 1, 3, .., 15
cdef const uint64_t* IQ1      # 2048, bytes of 0, 8 and 16: eight times (-1, 0 or 1), plus 8

# Signs as eight bytes: byte k is 255 if bit k of the index is set, else 0. SEVEN_SIGNS has an index
# of seven bits; its eighth bit makes the number of set bits even.
cdef const uint64_t* EIGHT_SIGNS  # 256
cdef const uint64_t* SEVEN_SIGNS  # 128
