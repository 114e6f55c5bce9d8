"""Writes deploy/crazyflie/simulator/contents/table.csv: every parameter and log variable of Bitcraze's firmware.

`python release/crazyflie_contents.py FIRMWARE cf2=FILE cf21bl=FILE`: a checkout of bitcraze/crazyflie-firmware, and the
.config that its `make cf2_defconfig` and `make cf21bl_defconfig` write. Needs a C preprocessor (`cc -E`). What comes
out are names, types and defaults: facts, no code. A default that is no number in its source file counts as 0.
"""

from __future__ import annotations

import csv
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

TABLE = Path(__file__).resolve().parents[1] / "deploy/crazyflie/simulator/contents/table.csv"
PLATFORMS = ("cf2", "cf21bl")
SET = re.compile(r"^(CONFIG_\w+)=(.*)$", re.M)
MADE = re.compile(r"^obj-(?:y|\$\((CONFIG_\w+)\))\s*\+=\s*(\S+)", re.M)
GROUP = re.compile(r"\b(LOG|PARAM)_GROUP_START(?:_SYNC)?\s*\(\s*(\w+)[^)]*\)(.*?)\b\1_GROUP_STOP(?:_SYNC)?\s*\(", re.S)
ADDED = re.compile(
    r"\b(?:LOG|PARAM)_ADD(_CORE|_DEBUG|_FULL|_BY_FUNCTION|_CORE_WITH_CALLBACK|_WITH_CALLBACK)?\s*"
    r"\(\s*([^,]+?)\s*,\s*([^,\s]+)\s*,\s*([^,;]+?)\s*(?:,[^;\n]*)?\)\s*(?=$|\n|;|\b(?:LOG|PARAM)_)",
    re.M,
)
NUMBER = re.compile(r"^[-+]?(?:0x[0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)[fFuUlL]*$")
PRODUCT = re.compile(r"\(?([\d.]+)[fF]?\s*([*/])\s*([\d.]+)[fF]?\)?")
# Where the defaults stand that are macros: they hold for the files that include them.
HEADERS = (
    "src/platform/interface/platform_defaults.h",
    "src/modules/interface/kalman_core/kalman_core_params_defaults.h",
)


def sources(folder: Path, config: dict[str, str]) -> Iterator[Path]:
    """The C files of a build, by its Kbuild files."""
    for condition, what in MADE.findall((folder / "Kbuild").read_text()):
        if condition and config.get(condition) != "y":
            continue
        if what.endswith("/"):
            if (folder / what / "Kbuild").exists():
                yield from sources(folder / what, config)
        elif (source := folder / what).with_suffix(".c").exists():
            yield source.with_suffix(".c")


def preprocessed(firmware: Path, source: Path, config: dict[str, str]) -> str:
    """The file after its conditionals, without what it includes: so that the tables' own macros stay as they are."""
    lines = [line for line in source.read_text(errors="replace").splitlines() if not re.match(r"\s*#\s*include", line)]
    with tempfile.TemporaryDirectory() as folder:
        defines = (f"#define {name} {1 if value == 'y' else value}\n" for name, value in config.items())
        (Path(folder) / "autoconf.h").write_text("".join(defines))
        command = ["cc", "-E", "-P", "-w", "-x", "c", f"-I{folder}"]
        command += [f"-I{firmware / header}" for header in sorted({str(Path(header).parent) for header in HEADERS})]
        command += [word for header in ("autoconf.h", *HEADERS) for word in ("-imacros", Path(header).name)]
        done = subprocess.run([*command, "-"], input="\n".join(lines), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{source}: {done.stderr.strip()}")
    return done.stdout


def initial(text: str, address: str) -> float:
    """The number that `&name` or `&name.member` begins with, where the file says so plainly; otherwise 0."""
    name = address.strip().lstrip("&( ").rstrip(") ")
    whole, _, member = name.partition(".")
    if member:
        start = re.search(rf"\b{re.escape(whole)}\s*=\s*(?:\([^)]*\)\s*)?\{{(.*?)\}}\s*;", text, re.S)
        found = re.search(rf"\.{re.escape(member)}\s*=\s*([^,\n}}]+)", start.group(1)) if start else None
    else:
        found = re.search(rf"^[\w\s]*\b\w+\s+{re.escape(name)}\s*=\s*([^;]+);", text, re.M)
    said = found.group(1).strip().strip("()").strip() if found else "0"
    said = {"true": "1", "false": "0"}.get(said, said)
    if not NUMBER.match(said):
        product = PRODUCT.fullmatch(said)
        if not product:
            return 0.0
        a, sign, b = product.groups()
        return float(a) * float(b) if sign == "*" else float(a) / float(b)
    said = said.rstrip("uUlL") if said.lower().startswith("0x") else said.rstrip("fFuUlL")
    return float(int(said, 16)) if said.lower().startswith("0x") else float(said)


def entries(firmware: Path, config: dict[str, str]) -> Iterator[tuple[str, str, str, str, float]]:
    """(parameter or log, group.name, type, flags, default) of every entry."""
    for source in [*sorted(set(sources(firmware / "src", config))), firmware / "src/utils/src/version.vtpl"]:
        if not re.search(r"\b(LOG|PARAM)_GROUP_START", source.read_text(errors="replace")):
            continue
        text = preprocessed(firmware, source, config)
        for kind, group, body in GROUP.findall(text):
            for how, declared, name, address in ADDED.findall(body):
                words = [word.strip(" ()") for word in declared.split("|")]
                flags = {"PARAM_RONLY": "read-only", "PARAM_PERSISTENT": "persistent"}
                said = {flags[word] for word in words if word in flags}
                if "_CORE" in how or f"{kind}_CORE" in words:
                    said.add("core")
                where = "parameter" if kind == "PARAM" else "log"
                ctype = next(word for word in words if word.startswith(f"{kind}_") and word[len(kind) + 1 :] in TYPES)
                value = initial(text, address) if where == "parameter" else 0.0
                yield where, f"{group}.{name}", TYPES[ctype[len(kind) + 1 :]], " ".join(sorted(said)), value


TYPES = {
    **{f"{sign}{bits}": f"{sign.lower()}{bits}" for sign in ("UINT", "INT") for bits in (8, 16, 32, 64)},
    "FLOAT": "float",
    "FP16": "fp16",
}


def main() -> None:
    """Parse every platform, write the table."""
    firmware = Path(sys.argv[1])
    files = dict(argument.split("=", 1) for argument in sys.argv[2:])
    rows: dict[tuple[str, str], list[str]] = {}
    for column, platform in enumerate(PLATFORMS):
        config = dict(SET.findall(Path(files[platform]).read_text()))
        for where, name, ctype, flags, value in entries(firmware, config):
            row = rows.setdefault((where, name), [where, name, ctype, flags, "", ""])
            row[4 + column] = f"{value:.9g}"
    with TABLE.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["what", "name", "type", "flags", *PLATFORMS])
        writer.writerows(rows[key] for key in sorted(rows))
    for where in ("parameter", "log"):
        print(where, *(sum(bool(row[4 + k]) for key, row in rows.items() if key[0] == where) for k in range(2)))


if __name__ == "__main__":
    main()
