"""python -m deploy.command.completion bash|zsh|fish: the script that completes `sim2metal` in that shell.

bash: eval "$(sim2metal completion bash)" in ~/.bashrc
zsh:  eval "$(sim2metal completion zsh)" in ~/.zshrc, after compinit
fish: sim2metal completion fish > ~/.config/fish/completions/sim2metal.fish

The script asks `sim2metal completion of WORD...` what the last word may become. Nothing heavy is imported for that.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from deploy import cli
from deploy.command.listing import KINDS
from deploy.command.names import POLICIES, TABLES, entries, shipped, tree
from deploy.command.table import COMMANDS
from sim.registry import plugins

OF = "of"
# Files whose names a shell takes as they are. In a downloaded folder one may be called $(...), and what is completed
# stands on the line as it is; the shell's own completion of files writes the others, quoted.
PLAIN = re.compile(r"\w[\w.+@%-]*")
SCRIPTS = {
    "bash": """\
_sim2metal() {
    local line="${COMP_LINE:0:COMP_POINT}" found
    local -a words
    read -ra words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    local word="${words[${#words[@]}-1]}"
    local kept="${word%"${word##*[=:]}"}"  # bash splits words at "=" and ":", and replaces what follows
    COMPREPLY=()
    while IFS= read -r found; do
        [[ -n $found ]] && COMPREPLY+=("${found#"$kept"}")
    done < <(sim2metal completion of "${words[@]:1}" 2>/dev/null)
    if [[ ${#COMPREPLY[@]} -eq 0 && $word == *=* ]]; then
        compopt -o filenames
        while IFS= read -r found; do COMPREPLY+=("$found"); done < <(compgen -f -- "${word#*=}")
    elif [[ ${COMPREPLY[0]} == *[=/] ]]; then
        compopt -o nospace
    fi
}
complete -F _sim2metal sim2metal
""",
    "zsh": """\
_sim2metal() {
    local -a found
    found=("${(@f)$(sim2metal completion of "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    found=("${(@)found:#}")
    if (( ${#found} )); then
        compadd -Q -S '' -- "${(@M)found:#*[=/]}"
        compadd -Q -- "${(@)found:#*[=/]}"
    elif compset -P '*='; then
        _files
    fi
}
compdef _sim2metal sim2metal
""",
    "fish": """\
complete -c sim2metal -f -a '(sim2metal completion of (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'
""",
}
# Settings whose values have names; those that name a place are completed with files, by the shell.
NAMED = {
    **{kind: kind for kind in TABLES},
    "task.robot": "robot",
    "policy": POLICIES,
}
SETTINGS, CONDITIONS = ("deploy.drivers.simulated", "Settings"), ("sim.conditions", "Conditions")
# Command -> classes that declare settings of it, besides `Config` of its own module.
MORE = {
    "train": (("policies.runner.config", "Options"),),
    "evaluate": (SETTINGS, CONDITIONS),
    "run": (("deploy.drivers.simulated", "Config"), SETTINGS, CONDITIONS),
    "crazyflie_sim": (("deploy.crazyflie.simulator", "Config"),),
    "collect": (("policies.teleop.session", "Settings"),),
}
GIVEN = {"train": ("task", "algorithm"), "adopt": ("from",)}  # what no class declares


def keys(command: str) -> list[str]:
    """The settings of a command, as its module's source declares them."""
    found = list(GIVEN.get(command, ()))
    for module, name in ((COMMANDS[command], "Config"), *MORE.get(command, ())):
        for node in tree(module).body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                found += [
                    s.target.id for s in node.body if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)
                ]
    return [*dict.fromkeys(found)]


def values(key: str) -> list[str]:
    """The names that a setting may have; none where it has no names."""
    kind = NAMED.get(key, "")
    if kind == POLICIES:
        return [*shipped(), *sorted(path.name for path in Path().glob("*.onnx") if PLAIN.fullmatch(path.name))]
    if not kind:
        return []
    ours = [name.removesuffix("NAME") for name, _ in entries(kind)]
    return [*dict.fromkeys([*ours, *plugins(kind)])]


def candidates(words: Sequence[str]) -> list[str]:
    """What the last of the words after `sim2metal` may become; the words before it are whole."""
    *before, last = words or ("",)
    if not before or before == ["help"]:
        return [name for name in (*COMMANDS, "help") if name.startswith(last)]
    command = before[0].replace("-", "_")
    if command == "list":
        return [kind for kind in KINDS if kind.startswith(last)]
    if command == "completion":
        return [shell for shell in SCRIPTS if shell.startswith(last)]
    if command not in COMMANDS:
        return []
    key, equals, value = last.partition("=")
    if equals:
        return [f"{key}={name}" for name in values(key) if name.startswith(value)]
    given = {word.partition("=")[0] for word in before}
    return [f"{name}=" for name in keys(command) if name.startswith(last) and name not in given]


def main(argv: Sequence[str]) -> None:
    """Print a script, or what completes a word."""
    if argv and argv[0] == OF:
        print("\n".join(candidates(argv[1:])))
        return
    if cli.wants_help(argv):
        print(__doc__)
        return
    if len(argv) != 1 or argv[0] not in SCRIPTS:
        raise cli.ArgumentError(f"needs one shell: {', '.join(SCRIPTS)}")
    print(SCRIPTS[argv[0]], end="")


if __name__ == "__main__":
    sys.exit(cli.call(main))
