"""Checks that users and the tests share: the op-case table and gradcheck."""

from toynn.testing.gradcheck import gradcheck

__all__ = ["gradcheck"]
