"""python tests/benchmarks/strip.py FILM.mp4 PICTURE.png CROP SECOND ...: a few moments of a film, side by side.

CROP is ffmpeg's `width:height:left:top`, in pixels of the film. How the pictures of docs/ are made stands beside them.
"""

import subprocess
import sys

import imageio_ffmpeg

COLOURS = 96
GAP = 6  # pixels of white between moments


def main(film: str, picture: str, crop: str, *moments: str) -> None:
    if not moments:
        sys.exit(f"usage: {str(__doc__).splitlines()[0].split(':')[0]}")
    chosen = "+".join(f"lt(prev_selected_t,{at})*gte(t,{at})+isnan(prev_selected_t)*gte(t,{at})" for at in moments)
    graph = (
        f"crop={crop},select='{chosen}',tile={len(moments)}x1:padding={GAP}:color=white,"
        f"split[shown][seen];[seen]palettegen=max_colors={COLOURS}[palette];[shown][palette]paletteuse=dither=none"
    )
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-loglevel", "error", "-i", film, "-vf", graph]
    subprocess.run([*command, "-frames:v", "1", picture], check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
