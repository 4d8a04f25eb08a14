"""Thumbnails of the pictures in payloads: small data URLs unchanged, larger ones as WebP of 160 pixels.

>>> thumbnail("data:image/png;base64,AAAA"), thumbnail("javascript:alert(1)")
('data:image/png;base64,AAAA', '')
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import re
from collections import OrderedDict

from matryo.errors import MatryoError, MissingExtra

__all__ = ["thumbnail"]

_DATA = re.compile(r"data:image/(?:png|jpeg|webp|gif|avif|svg\+xml);base64,[A-Za-z0-9+/]+={0,2}")
_SMALL, _MOST = 8192, 8 << 20   # characters
_SIDE = 160   # pixels
_KEPT = 2048   # thumbnails
_made = OrderedDict[bytes, str]()   # by the digest of the picture: the pictures themselves may be large


def thumbnail(url: str) -> str:
    """A data URL of a picture of at most a few kB; "" for anything else, or if it cannot be read."""
    if len(url) > _MOST or not _DATA.fullmatch(url):
        return ""
    if len(url) <= _SMALL:
        return url
    digest = hashlib.sha256(url.encode()).digest()
    small = _made.pop(digest, None)
    _made[digest] = small = _smaller(url) if small is None else small
    if len(_made) > _KEPT:
        _made.popitem(last=False)
    return small


def _smaller(url: str) -> str:
    from matryo.data.images.decode import decode

    try:
        pixels = decode(base64.b64decode(url.partition(",")[2], validate=True), "a picture")
        with MissingExtra.unless_installed("Pillow", "images", module="PIL"):
            from PIL import Image
    except (MatryoError, binascii.Error):
        return ""   # without Pillow, large pictures are not shown
    image, buffer = Image.fromarray(pixels), io.BytesIO()
    image.thumbnail((_SIDE, _SIDE))
    image.save(buffer, "WEBP", quality=80)
    return "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
