"""Numbers: types of elements, precision of products, checks of values.

dtypes     the types of a tensor's elements, quantized ones among them
precision  how exact matrix products are, in PyTorch's words
checks     what is declared and uploaded: no kernel meets a bad shape, id or label
adamw_row  the seven floats that a step of AdamW reads, and what each may be
"""
