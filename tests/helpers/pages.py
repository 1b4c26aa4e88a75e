"""What a page of the explorer has inside."""

import base64
import gzip
import json

__all__ = ["data_of"]


def data_of(html):
    """The data of a page: JSON, by gzip, in base64."""
    packed = html.split('id="data">')[1].split("</script>")[0]
    return json.loads(gzip.decompress(base64.b64decode(packed, validate=True)))
