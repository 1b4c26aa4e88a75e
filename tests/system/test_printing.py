"""What is printed where a stream cannot take it."""

import io

import pytest

from toynn.system.printing import Lenient


@pytest.mark.parametrize("encoding", ["ascii", "cp1251", "cp1252", "iso8859-15", "koi8-r"])
def test_letters_that_a_stream_lacks_become_escapes(encoding):
    """And those that it has stay: all codecs of one byte a letter call themselves charmap."""
    raw, text = io.BytesIO(), "é \u2014 я →"
    stream = Lenient(io.TextIOWrapper(raw, encoding))
    assert stream.write(text) == len(text)
    stream.flush()
    assert raw.getvalue() == text.encode(encoding, "backslashreplace")
