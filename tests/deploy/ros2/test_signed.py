"""Signed arming, as bytes: only the key's owner is believed, once, in order, for this robot, now."""

import os
import random

import pytest

from deploy.ros2.arming.signed import (
    MOST_CHALLENGES,
    NONCE,
    REQUEST_AGE,
    SIZE,
    Beat,
    Request,
    Signer,
    Verifier,
    read_key,
    write_key,
)

KEY, OTHER = bytes(range(SIZE)), bytes(SIZE)
BEATS, REQUESTS = "/quad0/armed_beat", "/quad0/arm_request"


def pair(key: bytes = KEY) -> tuple[Signer, Verifier]:
    """A supervisor, and a robot that has challenged it."""
    signer, verifier = Signer(key, BEATS, REQUESTS), Verifier(KEY, BEATS, 0.25)
    signer.challenged(b"robot", verifier.challenge)
    return signer, verifier


def test_what_was_signed_is_believed_in_order_and_gaps_are_counted():
    signer, verifier = pair()
    first, second, third = (signer.beat(10.0 + 0.05 * k, k > 0, False, 3) for k in range(3))
    beat = verifier.accepts(first, 100.0)
    assert beat == Beat(signer.session, 1, 10.0, False, False, 3, beat.challenges) and not beat.armed
    assert verifier.accepts(third, 100.1).armed and verifier.gaps == 1
    assert verifier.accepts(second, 100.1) is None and verifier.accepts(third, 100.11) is None
    assert verifier.refused == {"a repetition": 2}


def test_a_recording_is_worth_nothing():
    signer, verifier = pair()
    recorded = [signer.beat(10.0 + 0.05 * k, True, False, 0) for k in range(20)]
    assert verifier.accepts(recorded[0], 100.0)
    assert verifier.accepts(recorded[1], 100.4) is None  # held back for longer than silence may be
    assert verifier.refused == {"held back": 1}
    later = Verifier(KEY, BEATS, 0.25)  # the robot was started again, and knows nothing of that session
    assert all(later.accepts(beat, 200.0) is None for beat in recorded)
    assert later.refused == {"a session that we did not ask for": 20}
    again = Signer(KEY, BEATS, REQUESTS)  # so was the supervisor: it answers the challenge
    assert verifier.accepts(again.beat(5.0, True, False, 0), 101.0) is None
    again.challenged(b"robot", verifier.challenge)
    assert verifier.accepts(again.beat(5.0, True, False, 0), 101.0).armed
    assert verifier.accepts(recorded[2], 101.1) is None  # the old session is over, though it answered once


def test_another_key_another_robot_and_every_flipped_bit_are_refused():
    forger, verifier = pair(OTHER)
    assert verifier.accepts(forger.beat(10.0, True, False, 0), 100.0) is None
    signer, _ = pair()
    signer.challenged(b"neighbour", verifier.challenge)
    true = signer.beat(10.0, True, False, 0)
    assert Verifier(KEY, "/quad1/armed_beat", 0.25).accepts(true, 100.0) is None
    for bit in range(8 * len(true)):
        changed = bytearray(true)
        changed[bit // 8] ^= 1 << bit % 8
        assert verifier.accepts(bytes(changed), 100.0) is None
    assert verifier.accepts(true, 100.0).armed


def test_clocks_that_part_slowly_are_followed():
    signer, verifier = pair()
    for k in range(20 * 600):  # ten minutes at 20 Hz, 900 parts in a million: 0.5 s apart in the end
        assert verifier.accepts(signer.beat(0.05 * k, True, False, 0), 100.0 + 0.05 * k * 1.0009)


def test_requests_are_done_once_and_while_they_are_young():
    signer, _ = pair()
    signer.beat(10.0, False, False, 0)
    done: list[str] = []

    def do(verb: str) -> tuple[bool, str]:
        done.append(verb)
        return False, "geofence"

    asked = Request(signer.session, signer.number, "arm", os.urandom(NONCE))
    data = asked.sealed(KEY, REQUESTS)
    for _ in range(3):
        request = signer.asked(data)
        assert request is not None and signer.answer(request, do) == f"{asked.label} no geofence"
    assert done == ["arm"]
    assert signer.asked(asked.sealed(OTHER, REQUESTS)) is None
    assert signer.asked(asked.sealed(KEY, "/quad1/arm_request")) is None
    for _ in range(REQUEST_AGE + 1):
        signer.beat(10.0, False, False, 0)
    assert signer.asked(data) is None  # heard two seconds ago, and replayed
    assert Signer(KEY, BEATS, REQUESTS).asked(data) is None  # another session


def test_random_bytes_and_many_challenges():
    signer, verifier = pair()
    rng = random.Random(0)
    for k in range(3000):
        data = rng.randbytes(rng.randrange(300))
        assert verifier.accepts(data, 100.0) is None and signer.asked(data) is None
        signer.challenged(str(k).encode(), data)
    for k in range(100):
        signer.challenged(str(k).encode(), rng.randbytes(NONCE))
    beat = Beat.opened(KEY, BEATS, signer.beat(1.0, True, False, 0))
    assert beat is not None and len(beat.challenges) == MOST_CHALLENGES


def test_key_files(tmp_path):
    path = tmp_path / "arming.key"
    write_key(str(path))
    assert len(read_key(str(path))) == SIZE and path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ValueError, match="the file exists; a key is not overwritten"):
        write_key(str(path))
    path.chmod(0o640)
    with pytest.raises(ValueError, match="can be read by others .mode 640.: chmod 600"):
        read_key(str(path))
    path.chmod(0o600)
    path.write_bytes(b"short")
    with pytest.raises(ValueError, match="has 5 bytes, not 32 to 4096"):
        read_key(str(path))
    with pytest.raises(ValueError, match="No such file or directory; python -m deploy.ros2.key out=FILE makes one"):
        read_key(str(tmp_path / "none.key"))
    with pytest.raises(ValueError, match="is not a file"):
        read_key("/dev/zero")
    with pytest.raises(ValueError, match="out=/nowhere/arming.key: No such file or directory"):
        write_key("/nowhere/arming.key")
