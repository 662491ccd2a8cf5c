"""Try out one device: does it multiply matrices right, and how fast? A process of its own, since it may hang or crash.

Prints one JSON object: the seconds of the fastest product, and how many products were wrong. The device is the only one
that CUDA sees, or the processor where it sees none and none is asked for.

The matrices hold whole numbers of at most 8, so that every sum of a product is a whole number below 2^24, which single
precision (and TF32 with it) holds exactly: a right product is right to the last bit, in whatever order it is added up.
It is checked by random signs (Freivalds): C x = A (B x), of which any one wrong element of C changes the left side.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

REPEATS = 8
CPU_SIZE = 512
GPU_SIZE = 4096
_LARGEST = 8
_SIGNS = 4


def main() -> int:
    """Try the device out; returns the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--limit-s", type=int, required=True)
    options = parser.parse_args()
    signal.alarm(options.limit_s)  # whoever started this may be gone
    import torch  # noqa: PLC0415  # it takes seconds, and the limit holds for it too

    if options.cuda and not torch.cuda.is_available():
        sys.stderr.write("CUDA does not see the device\n")
        return 1
    sys.stdout.write(json.dumps(try_out(torch, cuda=options.cuda)) + "\n")
    return 0


def try_out(torch: Any, *, cuda: bool) -> dict[str, float | int]:
    """`product_s`, `wrong` and `of`."""
    size = GPU_SIZE if cuda else CPU_SIZE
    device = torch.device("cuda" if cuda else "cpu")
    if cuda:
        torch.backends.cuda.matmul.allow_tf32 = True  # so that the units are tried that training uses
    else:
        torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(7)

    def numbers(*shape: int) -> Any:
        return torch.randint(-_LARGEST, _LARGEST + 1, shape, generator=generator, dtype=torch.float32)

    left, right = numbers(size, size), numbers(size, size)
    signs = 2.0 * torch.randint(0, 2, (size, _SIGNS), generator=generator).double() - 1.0
    expected = left.double() @ (right.double() @ signs)
    left, right = left.to(device), right.to(device)
    clock: Callable[[], float] = time.perf_counter if cuda else time.process_time  # others use the core too
    times, wrong = [], 0
    for _ in range(REPEATS):
        began_s = clock()
        product = left @ right
        if cuda:
            torch.cuda.synchronize()
        times.append(clock() - began_s)
        wrong += not torch.equal(product.cpu().double() @ signs, expected)
    return {"product_s": min(times), "wrong": wrong, "of": REPEATS}


if __name__ == "__main__":
    sys.exit(main())
