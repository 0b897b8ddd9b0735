"""Which Ctrl-C counts. If this breaks, one key press in the middle of a rollback leaves a host half undone, or two do
nothing at all."""

import os
import signal

import pytest

from ops.interrupts import interrupts


def press(number: int = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_interrupts(number: int) -> None:
    with interrupts() as signals:
        with pytest.raises(KeyboardInterrupt):
            press(number)
        assert signals.count == 1


def test_while_going_back_the_first_signal_is_answered_and_the_second_one_leaves(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with interrupts() as signals, signals.recovering():
        press()
        assert "going back is under way" in capfd.readouterr().err
        with pytest.raises(KeyboardInterrupt):
            press()


def test_after_an_interruption_one_more_leaves() -> None:
    with interrupts() as signals:
        with pytest.raises(KeyboardInterrupt):
            press()
        with signals.recovering(), pytest.raises(KeyboardInterrupt):
            press()


def test_a_second_signal_between_the_failure_and_the_way_back_is_not_lost() -> None:
    with interrupts() as signals:
        with pytest.raises(KeyboardInterrupt):
            press()
        press()
        with pytest.raises(KeyboardInterrupt), signals.recovering():
            raise AssertionError("it went on")


def test_the_last_milliseconds_are_not_interrupted() -> None:
    with interrupts() as signals:
        with signals.recovering():
            signals.defer()
            press()
            press()
        press()
        assert signals.count == 3


def test_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with interrupts():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before
