"""Checks that users and the tests share: the op-case table and gradcheck."""
