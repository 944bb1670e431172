"""Reads and writes delta files from docs/protocol.md section 3 alone. Tensors are {name: (dtype, shape, bytes)}; signatures are not looked at."""
import hashlib, math, struct, lz4.frame

def runs(dtype, shape):  # what is shuffled apart, as (count, bytes each): for q8 and q4 the integers, then the scales
    n = math.prod(shape)
    quantised = {16: [(n, 1), (-(-n // 256), 4)], 17: [(-(-n // 2), 1), (-(-n // 64), 2)]}
    return quantised.get(dtype) or [(n, (4, 2, 2, 8, 1, 1, 4, 8)[dtype])]

def shuffle(data, runs, back=False):
    out, at = bytearray(len(data)), 0
    for count, size in runs:
        for byte in range(size):
            strided, plane = slice(at + byte, at + count * size, size), slice(at + byte * count, at + (byte + 1) * count)
            out[strided if back else plane] = data[plane if back else strided]
        at += count * size
    return bytes(out)

def cbor(value):  # DAG-CBOR: shortest heads, 64-bit floats, keys by length, then bytes
    if isinstance(value, float):
        return b"\xfb" + struct.pack(">d", value)
    major = {int: 0, bytes: 2, str: 3, dict: 5}[type(value)]
    body = value.encode() if major == 3 else value
    n = len(body) if major else value
    wide = sum(n >= limit for limit in (24, 1 << 8, 1 << 16, 1 << 32))
    head = bytes([major << 5 | (23 + wide if wide else n)]) + (n.to_bytes(1 << wide - 1, "big") if wide else b"")
    if major == 5:
        return head + b"".join(cbor(k) + cbor(value[k]) for k in sorted(value, key=lambda k: (len(k.encode()), k.encode())))
    return head + (body if major else b"")

def uncbor(data, at=0):  # (value, offset after it)
    major, n, at = data[at] >> 5, data[at] & 31, at + 1
    if n > 23:
        n, at = int.from_bytes(data[at : at + (1 << n - 24)], "big"), at + (1 << n - 24)
    if major in (0, 7):
        return (n if major == 0 else struct.unpack(">d", n.to_bytes(8, "big"))[0]), at
    if major in (2, 3):
        return (data[at : at + n] if major == 2 else data[at : at + n].decode()), at + n
    items, pairs = [], {}
    for _ in range(n if major == 4 else 0):
        item, at = uncbor(data, at)
        items.append(item)
    for _ in range(n if major == 5 else 0):
        key, at = uncbor(data, at)
        pairs[key], at = uncbor(data, at)
    return (items if major == 4 else pairs), at

def write(tensors, compression=0, metadata=None, auth=None):
    stored, hasher, flags = [], hashlib.sha3_256(), (metadata is not None) | (auth is not None) << 1
    for name in sorted(tensors, key=str.encode):
        dtype, shape, data = tensors[name]
        head = struct.pack("<I", len(name.encode())) + name.encode() + struct.pack(f"<BB{len(shape)}Q", dtype, len(shape), *shape)
        hasher.update(head + data)
        data = shuffle(data, runs(dtype, shape)) if compression == 2 else data
        stored += [head, lz4.frame.compress(data) if compression else data]
    blocks = [b"" if block is None else struct.pack("<I", len(cbor(block))) + cbor(block) for block in (metadata, auth)]
    hasher.update(blocks[0])
    header = b"DELTA" + bytes([1, compression, flags]) + hasher.digest()[:16]
    return b"".join([header, *stored, b"\0\0\0\0" if flags else b"", *blocks])

def read(file):  # (tensors, metadata, auth, content hash)
    assert file[:6] == b"DELTA\x01" and file[6] < 3 and file[7] < 4, "not a delta file of version 1"
    tensors, trailers, at, last, hasher = {}, [None, None], 24, b"", hashlib.sha3_256()
    while at < len(file) and (length := struct.unpack_from("<I", file, at)[0]):
        name, dtype, rank = file[at + 4 : at + 4 + length], file[at + 4 + length], file[at + 5 + length]
        shape, start = struct.unpack_from(f"<{rank}Q", file, at + 6 + length), at + 6 + length + 8 * rank
        size = used = sum(count * each for count, each in runs(dtype, shape))
        data = file[start : start + size]
        if file[6]:
            data, used = lz4.frame.decompress(file[start:], return_bytes_read=True)
            data = shuffle(data, runs(dtype, shape), back=True) if file[6] == 2 else data
        assert len(data) == size and name > last, f"tensor {name!r} at offset {at}: bad length or order"
        hasher.update(file[at:start] + data)
        tensors[name.decode()], last, at = (dtype, shape, data), name, start + used
    at += 4 if file[7] else 0
    for bit in (bit for bit in (0, 1) if file[7] >> bit & 1):
        trailers[bit], end = uncbor(file, at + 4)
        assert end == at + 4 + struct.unpack_from("<I", file, at)[0], f"trailer at offset {at}: bad length"
        hasher.update(b"" if bit else file[at:end])
        at = end
    assert at == len(file) and hasher.digest()[:16] == file[8:24], "trailing bytes, or a checksum that does not fit"
    return tensors, *trailers, hasher.digest()
