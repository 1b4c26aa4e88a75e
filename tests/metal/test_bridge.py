"""bridge.m itself: every function of bridge.h on the software device, and faults planted in it.

It compiles for the Macs of Apple too, and names nothing that Metal lacks.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import msl
import pytest
import standin
from hang import HANG

from toynn.backends import metal

pytestmark = pytest.mark.skipif(standin.missing() is not None, reason=str(standin.missing()))

FOLDER = Path(metal.__file__).parent
SOURCE = (FOLDER / "bridge.m").read_text()
HERE = Path(standin.__file__).parent
WARNINGS = ["-Wall", "-Wextra", "-Werror", "-I", str(FOLDER)]


def built(text):
    """Compile a text of bridge.m once; raise msl.Refused if the compiler does not take it."""

    def make(target):
        source = target.with_suffix(".m")
        source.write_text(text)
        flags = [*WARNINGS, "-g", "-O1", "-fPIC", "-shared", *standin.compile_flags()]
        command = [standin.COMPILER, *flags, source, "-o", target, *standin.link_flags()]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise msl.Refused(done.stderr)

    return msl.once("bridge.so", make, msl.headers(), text)


def drive(text):
    """Use every function of a bridge, in a process of its own; say what came of it."""
    command = [sys.executable, str(HERE / "drive.py"), str(built(text))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG)
    return done.stdout.strip() if done.returncode == 0 else f"{done.returncode} {done.stderr}"


def test_the_bridge_does_as_it_should():
    assert drive(SOURCE) == "ok"


#: What is written, what is written in its place; each must be seen.
FAULTS = {
    "no device is not noticed": ("if (!found) return NULL;", ""),
    "the queue leaks": ("[device->queue release];", ""),
    "the device leaks": ("[device->device release];\n", ""),
    "the queue is released twice": ("[device->queue release];", "[device->queue release];" * 2),
    "a null device is closed": ("if (!device) return;", ""),
    "simdgroups where there are none": ('"mac2", 0', '"mac2", 1'),
    "no simdgroups where there are some": ('"apple7", 1', '"apple7", 0'),
    "any family is the first": ("if (![found supportsFamily:families[i].family]) continue;", ""),
    "another limit": ("[found maxBufferLength]", "[found maxThreadgroupMemoryLength]"),
    "fresh memory is not zeroed": ("if (buffer) memset([buffer contents], 0, nbytes);", ""),
    "half is zeroed": ("contents], 0, nbytes)", "contents], 0, nbytes / 2)"),
    "memory that the CPU does not see": ("ModeShared];\n        if", "ModePrivate];\n        if"),
    "less memory than asked for": ("newBufferWithLength:nbytes", "newBufferWithLength:nbytes / 2"),
    "memory that was refused is zeroed": ("if (buffer) memset", "memset"),
    "shared memory is another": (
        "newBufferWithBytesNoCopy:start\n",
        "newBufferWithBytesNoCopy:(char *)start + 4096\n",
    ),
    "a part of a page": ("length:nbytes\n", "length:nbytes - 4\n"),
    "a buffer leaks": ("[(id<MTLBuffer>)buffer release];", ""),
    "fast math": ("setFastMathEnabled:NO", "setFastMathEnabled:YES"),
    "no options": ("options:options\n", "options:nil\n"),
    "the options leak": ("[options release];", ""),
    "the compiler's words are lost": ('say(error, "newLibraryWithSource", why);', "(void)why;"),
    "a library leaks": ("[(id<MTLLibrary>)library release];", ""),
    "a function that is not there": ("if (!found) {\n            say", "if (0) {\n            say"),
    "a function leaks": ("[found release];\n        if (!pipeline)", "if (!pipeline)"),
    "a function is released twice": (
        "[found release];\n        if",
        "[found release];" * 2 + " if",
    ),
    "a pipeline leaks": ("[(id<MTLComputePipelineState>)pipeline release];", ""),
    "the commands are not held": (
        "[[device->queue commandBuffer] retain]",
        "[device->queue commandBuffer]",
    ),
    "the encoder is not held": ("computeCommandEncoder] retain]", "computeCommandEncoder]"),
    "no pipeline is set": (
        "[encoder setComputePipelineState:(id<MTLComputePipelineState>)pipeline];",
        "(void)pipeline;",
    ),
    "the last buffer is not bound": ("i < n_buffers", "i < n_buffers - 1"),
    "bound at another index": ("atIndex:(NSUInteger)i]", "atIndex:(NSUInteger)i + 1]"),
    "offsets are ignored": ("offset:offsets[i]", "offset:offsets[0] * 0"),
    "one group too few": ("MTLSizeMake(groups[0],", "MTLSizeMake(groups[0] - 1,"),
    "groups of other sizes": ("MTLSizeMake(threads[0],", "MTLSizeMake(threads[0] / 2,"),
    "threads are groups": (
        "MTLSizeMake(threads[0], threads[1]",
        "MTLSizeMake(threads[1], threads[1]",
    ),
    "encoding does not end": ("[commands->encoder endEncoding];\n        [comm", "[comm"),
    "encoding ends twice": ("commands->encoder = nil;", ""),
    "nothing is committed": ("[commands->buffer commit];", ""),
    "committed twice": ("[commands->buffer commit];", "[commands->buffer commit];" * 2),
    "committed before encoding ends": (
        "[commands->encoder endEncoding];\n        [commands->encoder release];\n",
        "[commands->buffer commit]; [commands->encoder endEncoding]; [commands->encoder release];",
    ),
    "nobody waits": ("[commands->buffer waitUntilCompleted];", ""),
    "a failure is not seen": ("== MTLCommandBufferStatusCompleted) return 0;", "!= 99) return 0;"),
    "success is a failure": (
        "== MTLCommandBufferStatusCompleted)",
        "== MTLCommandBufferStatusError)",
    ),
    "the device's words are lost": (
        '"command buffer", [commands->buffer error]',
        '"command buffer", nil',
    ),
    "time runs backwards": (
        "GPUEndTime] - [commands->buffer GPUStartTime",
        "GPUStartTime] - [commands->buffer GPUEndTime",
    ),
    "commands leak": (
        "[commands->buffer release];\n        free(commands);\n    }\n}",
        "free(commands);\n    }\n}",
    ),
    "an encoder leaks": (
        "[commands->encoder release];\n        commands->encoder = nil;",
        "commands->encoder = nil;",
    ),
    "given up while encoding": ("if (commands->encoder) [commands->encoder endEncoding];", ""),
    "a selector that there is not": ("[commands->buffer commit];", "[commands->buffer comit];"),
    "a number for an object": ("setBuffer:(id<MTLBuffer>)buffers[i]", "setBuffer:i"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen(fault):
    old, new = FAULTS[fault]
    assert old in SOURCE
    try:
        came = drive(SOURCE.replace(old, new, 1))
    except (msl.Refused, subprocess.TimeoutExpired):
        return
    assert came != "ok"


def test_it_compiles_for_the_macs_of_apple(tmp_path):
    flags = ["-target", "arm64-apple-macos13", "-fno-objc-arc", "-nostdlibinc", *WARNINGS]
    stubs = ["-I", str(HERE / "apple"), "-I", str(HERE / "include")]
    target = tmp_path / "bridge.o"
    command = [standin.COMPILER, *flags, *stubs, "-c", FOLDER / "bridge.m", "-o", target]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert target.read_bytes()[:4] == b"\xcf\xfa\xed\xfe"  # Mach-O, 64 bits


def analysed(text, tmp_path):
    """What clang's analyser says of references and memory."""
    source = tmp_path / "bridge.m"
    source.write_text(text)
    checkers = ["-Xclang", "-analyzer-checker=osx.cocoa,core,unix", "--analyzer-output", "text"]
    flags = [*standin.compile_flags(), "-I", str(FOLDER)]
    command = [standin.COMPILER, "--analyze", *checkers, *flags, source, "-o", tmp_path / "x"]
    return subprocess.run(command, capture_output=True, text=True).stderr


def test_the_analyser_finds_nothing(tmp_path):
    assert analysed(SOURCE, tmp_path) == ""


def test_the_analyser_finds_a_leak(tmp_path):
    leaking = SOURCE.replace("[options release];", "")
    assert "leak" in analysed(leaking, tmp_path)


def test_the_bridge_knows_apples_api_alone():
    includes = re.findall(r"#\s*(?:import|include)\s+[<\"]([^>\"]+)", SOURCE)
    allowed = {"Foundation/Foundation.h", "Metal/Metal.h", "bridge.h"}
    assert set(includes) <= allowed | {"stdio.h", "stdlib.h", "string.h"}
    assert not re.search(r"linux|gnustep|standin|__APPLE__|ifdef", SOURCE, re.IGNORECASE)


def test_the_stand_in_says_what_apples_header_says():
    """Selectors and constants, as PyObjC has them of Apple's own headers."""
    apple = json.loads((Path(__file__).parents[1] / "fixtures" / "metal_api.json").read_text())
    header = (HERE / "include" / "Metal" / "Metal.h").read_text()
    methods = re.findall(r"^- \(.*?\)([\w(].*?);", header, re.MULTILINE | re.DOTALL)
    selectors = {"".join(re.findall(r"\w+:(?=\()", m)) or m.strip() for m in methods}
    selectors |= set(re.findall(r"@property \([^)]*\) .*?(\w+);", header))
    assert len(selectors) > 20 and selectors == set(apple["selectors"])
    constants = dict(re.findall(r"\b(MTL\w+) = (\d+(?: << \d+)?)", header))
    numbers = {}
    for name, text in constants.items():
        number, _, shift = text.partition(" << ")
        numbers[name] = int(number) << int(shift or 0)
    assert numbers == apple["constants"]


def test_every_function_of_the_header_is_there():
    header = (FOLDER / "bridge.h").read_text()
    declared = set(re.findall(r"\btoynn_metal_\w+(?=\()", header))
    assert declared == set(re.findall(r"^\w.*?\b(toynn_metal_\w+)\(", SOURCE, re.MULTILINE))
    assert declared == set(
        re.findall(r"\btoynn_metal_\w+(?=\()", (FOLDER / "_bridge.pxd").read_text())
    )
