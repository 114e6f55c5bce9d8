"""`sim2metal demo`: the shipped policy catches what is thrown, and a picture is drawn."""

import pytest

from policies import demo


def test_a_picture_of_caught_vehicles_is_drawn(tmp_path, capsys):
    demo.main([f"out={tmp_path / 'flights'}", "episodes=2", "video=false"])
    said = capsys.readouterr().out
    assert "2 of 2 were caught" in said and f"picture: {tmp_path / 'flights.png'}" in said
    assert (tmp_path / "flights.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("wrong", ["episodes=0", "out=nowhere/to/be/found"])
def test_bad_settings_are_refused_before_anything_flies(wrong):
    with pytest.raises(ValueError, match=wrong.partition("=")[0]):
        demo.main([wrong])
