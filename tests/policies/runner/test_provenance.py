"""What is imported beside training."""

import threading

from policies.runner import provenance


def test_an_ended_run_waits_for_what_is_being_imported(monkeypatch):
    begun, release = threading.Event(), threading.Event()

    def slow(name):
        begun.set()
        release.wait(5.0)

    monkeypatch.setattr(provenance.importlib, "import_module", slow)
    with provenance.Background() as background:
        background.start()
        assert begun.wait(5.0)
        release.set()
    assert not background.is_alive()
    with provenance.Background():
        pass  # one that never started is not waited for
