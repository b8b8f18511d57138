"""Two of these fail while the fault is there."""

from __future__ import annotations

import contextlib
import unittest

from paging import page_count, page_of

LETTERS = list("abcdefg")


class Paging(unittest.TestCase):
    def test_a_last_page_that_is_not_full_is_counted(self) -> None:
        assert page_count(7, 3) == 3

    def test_full_pages_need_no_further_one(self) -> None:
        assert page_count(6, 3) == 2
        assert page_count(0, 3) == 0

    def test_the_last_page_holds_what_is_left(self) -> None:
        assert page_of(LETTERS, 3, 3) == ["g"]

    def test_a_page_past_the_end_is_not_there(self) -> None:
        with contextlib.suppress(LookupError):
            page_of(LETTERS[:6], 3, 3)
            self.fail("an empty page was given")


if __name__ == "__main__":
    unittest.main()
