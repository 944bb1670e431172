#!/usr/bin/env python3
"""Delta files beside what a Python program would do: safetensors, LZ4 and SHA3-256 one after the other.

    bench_delta.py [--program PROGRAM] [--mib 256] [--runs 5] [--dir DIR] [--json FILE]

PROGRAM is the built example `delta_bench` (cargo builds it with --release when it is not given). Both take turns, run by
run, on the same number of bytes of normal values; figures are medians. Needs numpy, safetensors and lz4 (PyPI).
"""

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import lz4.frame
import numpy as np
import safetensors.numpy

ROOT = Path(__file__).resolve().parent.parent.parent


def main():
    args = arguments()
    program = args.program or build()
    values = np.random.default_rng(1).standard_normal((args.mib << 20) // 4, dtype=np.float32) * np.float32(1e-4)
    tensors = {f"layer.{i}.weight": part for i, part in enumerate(np.split(values, 256))}
    ours, theirs = [], []
    with tempfile.TemporaryDirectory(dir=args.dir) as work:
        for _ in range(args.runs):
            command = [program, "--json", "--runs", "1", "--mib", str(args.mib), "--dir", work]
            ours.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
            theirs.append(python(tensors, Path(work) / "file"))
    report = {"load": os.getloadavg(), "runs": args.runs, "mib": args.mib, "ours": medians(ours), "python": medians(theirs)}
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    show(report)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program")
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def build():
    subprocess.run(["cargo", "build", "--release", "--locked", "-p", "gym-protocol", "--example", "delta_bench"], check=True, cwd=ROOT)
    target = os.environ.get("CARGO_TARGET_DIR", ROOT / "target")
    return Path(target) / "release/examples/delta_bench"


def python(tensors, path):
    """Seconds of hashing alone, of writing and of reading, without and with LZ4."""
    raw = safetensors.numpy.save(tensors)
    times = {"hash": timed(lambda: hashlib.sha3_256(raw).digest())[0]}
    for name, pack, unpack in [("plain", bytes, bytes), ("lz4", lz4.frame.compress, lz4.frame.decompress)]:
        times[f"{name} write"], digest = timed(lambda: write(tensors, path, pack))
        times[f"{name} read"], read_digest = timed(lambda: read(path, unpack))
        assert digest == read_digest
        times[f"{name} size"] = path.stat().st_size / len(raw)
    return times


def write(tensors, path, pack):
    raw = safetensors.numpy.save(tensors)
    digest = hashlib.sha3_256(raw).digest()
    path.write_bytes(pack(raw))
    return digest


def read(path, unpack):
    raw = unpack(path.read_bytes())
    digest = hashlib.sha3_256(raw).digest()
    safetensors.numpy.load(raw)
    return digest


def timed(work):
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def medians(runs):
    """The median of every number, whatever it is nested in."""
    first = runs[0]
    if isinstance(first, dict):
        return {key: medians([run[key] for run in runs]) for key in first}
    if isinstance(first, list):
        return [medians(list(each)) for each in zip(*runs)]
    return first if isinstance(first, str) else statistics.median(runs)


def show(report):
    ours, theirs = report["ours"], report["python"]
    hash = ours["sha3_256"]["seconds"]
    print(f"{report['mib']} MiB, medians of {report['runs']}; load {report['load'][0]:.1f}")
    print(f"SHA3-256 alone: ours {hash:.3f} s ({ours['sha3_256']['gb_s']:.3f} GB/s), hashlib {theirs['hash']:.3f} s")
    for file in ours["files"]:
        encode, decode = file["encode_seconds"], file["decode_seconds"]
        print(
            f"ours {file['dtype']:>4} compression {file['compression']}: encode {encode:.3f} s ({encode / hash:.2f}x our hash), "
            f"decode {decode:.3f} s ({decode / hash:.2f}x), {file['size_to_bf16']:.3f} of bf16's size"
        )
    for name in ("plain", "lz4"):
        write, read = theirs[f"{name} write"], theirs[f"{name} read"]
        print(
            f"python f32 {name}: write {write:.3f} s ({write / theirs['hash']:.2f}x its hash), "
            f"read {read:.3f} s ({read / theirs['hash']:.2f}x), {theirs[f'{name} size']:.3f} of f32's size"
        )


if __name__ == "__main__":
    main()
