"""Probe of one device by matrix products, in a separate process, because it may hang or crash.

The program prints one JSON object: the seconds of the fastest product, and the number of wrong products. It
tests the only device that CUDA sees, or the processor without `--cuda`.

The matrices hold integers of at most 8, so every sum in a product is an integer below 2^24. Single precision,
and TF32 with it, represents these exactly, so a correct product is exact in any order of summation. Random
signs check it (Freivalds): C x = A (B x), where a single wrong element of C changes the left side.
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
    """Run the probe, and return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--limit-s", type=int, required=True)
    options = parser.parse_args()
    signal.alarm(options.limit_s)  # the process that started this one may be gone
    import torch  # noqa: PLC0415  # takes seconds, which count towards the limit

    if options.cuda and not torch.cuda.is_available():
        sys.stderr.write("CUDA does not see the device\n")
        return 1
    sys.stdout.write(json.dumps(try_out(torch, cuda=options.cuda)) + "\n")
    return 0


def try_out(torch: Any, *, cuda: bool) -> dict[str, float | int]:
    """Multiply matrices on the device, and return `product_s`, `wrong` and `of`."""
    size = GPU_SIZE if cuda else CPU_SIZE
    device = torch.device("cuda" if cuda else "cpu")
    if cuda:
        torch.backends.cuda.matmul.allow_tf32 = True  # test the units that training uses
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
