"""What the run measured, and what each figure must be."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from chat import Turn
from engine import Publishing
from harness import say, until
from router import Place

Number = int | float


@dataclass(frozen=True)
class Figure:
    """A number and its bounds; one without bounds is only told."""

    value: Number
    least: Number | None = None
    most: Number | None = None

    def holds(self) -> bool:
        return (self.least is None or self.value >= self.least) and (self.most is None or self.value <= self.most)

    def __str__(self) -> str:
        match self.least, self.most:
            case None, None:
                return f"{self.value}"
            case least, most if least == most:
                return f"{self.value} (must be {least})"
            case least, None:
                return f"{self.value} (at least {least})"
            case None, most:
                return f"{self.value} (at most {most})"
            case least, most:
                return f"{self.value} ({least} to {most})"


Figures = dict[str, Figure]


def exactly(value: Number, wanted: Number) -> Figure:
    return Figure(value, wanted, wanted)


def share(part: Number, whole: Number) -> float:
    """Rounded down, so that it is 1 only when nothing is missing; 0 of nothing."""
    return int(part / whole * 10_000) / 10_000 if whole else 0.0


def quantile(values: list[float], at: float) -> float:
    """The smallest of the values that `at` of them do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-at * len(ordered) // 1) - 1))]


def milliseconds(seconds: list[float], at: float) -> Figure:
    return Figure(round(quantile(seconds, at) * 1e3, 1))


def within_one_block(turns: list[Turn]) -> float:
    """The share of turns, of those with a prediction, whose cached tokens Rankway predicted."""
    close = [turn.error <= turn.block for turn in turns if turn.error is not None]
    return share(sum(close), len(close))


def ran(engines: Sequence[Publishing]) -> Counter[Place]:
    """Requests that each rank of the engines has run."""
    return Counter({Place(engine.worker, rank): count for engine in engines for rank, count in engine.ran().items()})


class Evidence:
    """Of all turns of the run: where they were sent against where they ran, and what was predicted against
    what was found."""

    def __init__(self) -> None:
        self._turns: list[Turn] = []
        self._steered = 0

    @contextmanager
    def watch(self, engines: Sequence[Publishing]) -> Iterator[list[Turn]]:
        """Takes the turns that the block puts into the list. Nothing else may run on these engines."""
        before = ran(engines)
        turns: list[Turn] = []
        yield turns
        sent = Counter(turn.place for turn in turns if turn.place is not None)

        def ran_since() -> Counter[Place]:
            return ran(engines) - before

        until(lambda: ran_since().total() >= sent.total(), "the engines count what they have run")
        self._steered += (sent & ran_since()).total()
        self._turns += turns
        for turn in turns:
            if turn.error is not None and turn.error > turn.block:
                say(f"  predicted wrongly: {turn.overlap} of {turn.prompt} tokens, and {turn.cached} were cached")

    def figures(self) -> Figures:
        exact = [turn.error == 0 for turn in self._turns if turn.error is not None]
        return {
            "turns": Figure(len(self._turns)),
            "steered_share": exactly(share(self._steered, len(self._turns)), 1),
            "predicted_turns": Figure(len(exact)),
            "within_one_block_share": Figure(within_one_block(self._turns), least=0.99),
            "exact_share": Figure(share(sum(exact), len(exact))),
        }


def unpredicted(turn: Turn) -> Turn:
    """The turn without its prediction, which could not have been right."""
    return replace(turn, overlap=None)
