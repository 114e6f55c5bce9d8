"""python tests/benchmarks/film.py QUADROTORS.mp4 ARMS.mp4: the README's moving picture, docs/flight_and_grasp.gif.

The films come from `python -m policies.evaluate policy=quad_any robot=racer episodes=200 video=QUADROTORS.mp4` and
from `python -m policies.train task=arm_pick_place preset=dsrl seed=0`, evaluated with `episodes=8 video=ARMS.mp4`.
"""

import subprocess
import sys
from pathlib import Path

import imageio_ffmpeg

PICTURE = Path(__file__).parents[2] / "docs" / "flight_and_grasp.gif"
HEIGHT, FPS, SECONDS = 270, 10, 4
GRAPH = (
    f"[0:v]fps={FPS},scale=-2:{HEIGHT}[left];[1:v]fps={FPS},crop=480:480:0:0,scale=-2:{HEIGHT}[right];"
    "[left][right]hstack,split[shown][seen];[seen]palettegen=max_colors=80[palette];"
    "[shown][palette]paletteuse=dither=none:diff_mode=rectangle"
)


def main(quadrotors: str, arms: str) -> None:
    films = [argument for film in (quadrotors, arms) for argument in ("-t", str(SECONDS), "-i", film)]
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-loglevel", "error", *films, "-filter_complex", GRAPH]
    subprocess.run([*command, str(PICTURE)], check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
