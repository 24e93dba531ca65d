"""What the engine is told of a request's rank and conversation."""

import unittest
from dataclasses import replace

from tests.test_options import AFFINITY, KEEPS, options
from trtllm_worker.placing import Placement, Refused, place

PLAIN = options(["--tensor-parallel-size", "4", "--enable-attention-dp"])
ENGINE = options(AFFINITY, KEEPS)
ROUTER = replace(ENGINE, rank_source="router")
ONE_RANK = options()


class Placing(unittest.TestCase):
    def test_who_chooses_the_rank_decides_what_is_told(self):
        for told, rank, conversation, expected in (
            (PLAIN, "2", None, Placement(2, None)),
            (PLAIN, None, None, Placement(None, None)),
            # An engine that keeps no conversations is told none.
            (PLAIN, "2", "c", Placement(2, None)),
            (ENGINE, None, "c", Placement(None, "c")),
            (ENGINE, None, None, Placement(None, None)),
            (ROUTER, "3", " c ", Placement(3, "c")),
            (ROUTER, None, "c", Placement(None, "c")),
            (ROUTER, "3", None, Placement(3, None)),
            (ONE_RANK, "0", None, Placement(None, None)),
        ):
            with self.subTest(source=told.rank_source, rank=rank, conversation=conversation):
                self.assertEqual(place(told, rank, conversation), expected)

    def test_a_rank_is_never_dropped_in_silence(self):
        for told, rank, words in (
            (ENGINE, "1", "the engine chooses"),
            (PLAIN, "4", r"data_parallel_rank 4 is out of range \[0, 4\)"),
            (PLAIN, "9" * 5000, "out of range"),
            (ONE_RANK, "1", r"out of range \[0, 1\)"),
            (PLAIN, "-1", "is a number"),
            (PLAIN, "", "is a number"),
            (PLAIN, "²", "is a number"),
        ):
            with self.subTest(rank=rank[:9]), self.assertRaisesRegex(Refused, words):
                place(told, rank, "c")

    def test_a_conversation_is_a_text_of_bounded_length(self):
        for conversation in ("", " ", 7, ["c"], "c" * 257):
            with self.subTest(conversation=conversation), self.assertRaises(Refused):
                place(ROUTER, "0", conversation)
