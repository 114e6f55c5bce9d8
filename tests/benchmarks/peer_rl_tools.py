"""rl-tools' kernels for Arm (C++ headers) as a contestant of microcontroller.py: a network with a policy's weights.

$RL_TOOLS names a checkout of rl-tools. Freestanding, its headers need three of the standard library, which stand here.
"""

import os
from pathlib import Path

import peers

from deploy.codegen import operators, toolchain
from deploy.codegen.onnx_graph import Graph
from deploy.codegen.program import Writer
from deploy.codegen.source import FIRMWARE

HEADERS = {
    "cstddef": "#pragma once\n#include <stddef.h>\nnamespace std { using ::size_t; }\n",
    "cstdint": "#pragma once\n#include <stdint.h>\n",
    "cmath": """#pragma once
#include "policy_math.h"
namespace std {
inline float sqrt(float x) { return policy_sqrt(x); }
inline float tanh(float x) { return policy_tanh(x); }
inline float exp(float x) { return policy_exp(x); }
inline float abs(float x) { return __builtin_fabsf(x); }
float sin(float), cos(float), acos(float), pow(float, float), log(float), floor(float), atan2(float, float);
bool isnan(float), isfinite(float);
}
""",
}
NETWORK = """
#include <rl_tools/operations/arm.h>
#include <rl_tools/nn/layers/dense/operations_arm/opt.h>
#include <rl_tools/nn_models/mlp/operations_generic.h>

namespace rlt = rl_tools;
using DEVICE = rlt::devices::DefaultARM;
using TI = DEVICE::index_t;
constexpr auto ACTIVATION = rlt::nn::activation_functions::ActivationFunction::{activation};
using CONFIG = rlt::nn_models::mlp::Configuration<
    rlt::numeric_types::Policy<float>, TI, {outputs}, 3, {hidden}, ACTIVATION, ACTIVATION>;
using SHAPE = rlt::tensor::Shape<TI, 1, 1, {inputs}>;
using NETWORK = rlt::nn_models::mlp::NeuralNetwork<CONFIG, rlt::nn::capability::Forward<true, true>, SHAPE>;
template <TI N> using ROW = rlt::Matrix<rlt::matrix::Specification<float, TI, 1, N, true>>;

constexpr NETWORK network = {{
    {{{{(float *)w0}}, {{(float *)b0}}}},
    {{{{{{(float *)w1}}, {{(float *)b1}}}}}},
    {{{{(float *)w2}}, {{(float *)b2}}}},
}};
static NETWORK::Buffer<false> buffer;

extern "C" {{
float before[{inputs}], after[{outputs}];
__attribute__((noinline, used)) void step() {{
    DEVICE device;
    DEVICE::SPEC::RANDOM::ENGINE<> none;
    ROW<{inputs}> input{{before}};
    ROW<{outputs}> output{{after}};
    rlt::evaluate(device, network, input, output, buffer, none);
}}
}}
"""
MAIN = '#include "board.h"\nvoid step(void);\nint main(void);\nint main(void) { for (;;) { step(); board_idle(); } }\n'


def image(graph: Graph, activation: str, folder: Path) -> Path:
    """Its network with the weights of the graph's three products. MissingPeerError without $RL_TOOLS."""
    checkout = os.environ.get("RL_TOOLS")
    if not checkout:
        raise peers.MissingPeerError("not had: $RL_TOOLS does not name a checkout")
    writer = Writer(graph, {})
    layers = [operators.matrix(n, writer.values(n)) for n in graph.nodes if n.operator == "Gemm"]
    arrays = "".join(
        f"constexpr float {name}{k}[] = {{{', '.join(map(operators.number, values.ravel()))}}};\n"
        for k, layer in enumerate(layers)
        for name, values in zip("wb", layer, strict=True)
    )
    (hidden, inputs), outputs = layers[0][0].shape, len(layers[2][0])
    sizes = {"activation": activation, "inputs": inputs, "hidden": hidden, "outputs": outputs}
    (folder / "network.cpp").write_text(arrays + NETWORK.format(**sizes))
    (folder / "main.c").write_text(MAIN)
    for name, text in HEADERS.items():
        (folder / name).write_text(text)
    kind, command = toolchain.choose("zig", "arm-none-eabi-gcc")
    flags = [*toolchain.CORTEX_M4F[kind], *toolchain.BARE, "-O3", "-ffp-contract=off", "-w"]
    places = ["-I", folder, "-I", FIRMWARE, *toolchain.headers(), "-I", Path(checkout) / "include"]
    cxx = [*command[:-1], "c++", "-std=c++17", "-fno-exceptions", "-fno-rtti"]
    compiling = [flag for flag in flags if not flag.startswith("-Wl,")]  # with them zig links the object already
    toolchain.run([*cxx, *compiling, *places, "-c", folder / "network.cpp", "-o", folder / "network.o"])
    sources = [folder / "main.c", *toolchain.beneath(), folder / "network.o"]
    built = folder / "rl_tools.elf"
    toolchain.run([*command, *flags, *places, "-T", toolchain.linker_script(folder), *sources, "-o", built])
    return built
