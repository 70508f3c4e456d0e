from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.fleet import Backend
from controlplane.gateway.facade.fleet import Key, Sequences

ONE, TWO = Backend("one", "h", 1, 2), Backend("two", "h", 3, 4)
KEY = ("m", "5")


def enter(
    sequences: Sequences, now_s: float, where: Backend | None, *, start: bool = False, key: Key = KEY
) -> Backend | None:
    return sequences.enter(key, start=start, idle_s=1.0, now_s=now_s, choose=lambda: where)


def test_silence_ends_it_but_not_while_it_is_answered() -> None:
    sequences = Sequences()
    enter(sequences, 0.0, ONE, start=True)
    sequences.expire(9.0)
    assert sequences.living() == {"one": 1}
    sequences.leave(KEY, end=False, now_s=9.0)
    sequences.expire(9.9)
    assert sequences.living() == {"one": 1}
    sequences.expire(10.1)
    assert sequences.living() == {}


def test_an_end_waits_for_what_is_still_under_way() -> None:
    sequences = Sequences()
    enter(sequences, 0.0, ONE, start=True)
    enter(sequences, 0.0, TWO)
    sequences.leave(KEY, end=True, now_s=0.1)
    assert sequences.living() == {"one": 1}


def test_one_without_an_id_or_without_a_server_leaves_no_trace() -> None:
    sequences = Sequences()
    for where in (ONE, TWO):
        assert enter(sequences, 0.0, where, key=("m", "")) is where
    sequences.leave(("m", ""), end=False, now_s=0.0)
    assert enter(sequences, 0.0, None, start=True) is None
    sequences.leave(KEY, end=True, now_s=0.0)
    assert sequences.living() == {}


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.floats(0, 0.9)), max_size=30))
def test_between_start_and_end_there_is_one_server(steps: list[tuple[bool, bool, float]]) -> None:
    sequences = Sequences()
    now, home = 0.0, None
    for number, (start, end, pause) in enumerate(steps):
        now += pause
        chosen = (ONE, TWO)[number % 2]
        served = enter(sequences, now, chosen, start=start)
        assert served is (chosen if start or home is None else home)
        sequences.leave(KEY, end=end, now_s=now)
        home = None if end else served
    assert sum(sequences.living().values()) == (home is not None)
