// A Helia node that takes orders as lines of JSON, as kubo.py does. Run it where the packages are installed:
// ES modules are looked up from the file's place, so the driver copies it there.

import { createReadStream, createWriteStream } from 'node:fs'
import { mkdir, stat } from 'node:fs/promises'
import { createInterface } from 'node:readline'
import { dirname, join } from 'node:path'
import { once } from 'node:events'
import { noise } from '@chainsafe/libp2p-noise'
import { yamux } from '@chainsafe/libp2p-yamux'
import { bitswap } from '@helia/block-brokers'
import { globSource, unixfs } from '@helia/unixfs'
import { Helia } from '@helia/utils'
import { identify } from '@libp2p/identify'
import { tcp } from '@libp2p/tcp'
import { multiaddr } from '@multiformats/multiaddr'
import { MemoryBlockstore } from 'blockstore-core'
import { MemoryDatastore } from 'datastore-core'
import { createLibp2p } from 'libp2p'
import { CID } from 'multiformats/cid'

// Node.js 20 lacks it, and libp2p asks for 22.
Promise.withResolvers ??= function () {
  const parts = {}
  parts.promise = new Promise((resolve, reject) => Object.assign(parts, { resolve, reject }))
  return parts
}

let helia
let files

async function start () {
  const datastore = new MemoryDatastore()
  const blockstore = new MemoryBlockstore()
  const libp2p = await createLibp2p({
    datastore,
    addresses: { listen: ['/ip4/127.0.0.1/tcp/0'] },
    transports: [tcp()],
    connectionEncrypters: [noise()],
    streamMuxers: [yamux()],
    services: { identify: identify() },
    connectionGater: { denyDialMultiaddr: () => false }
  })
  helia = new Helia({ libp2p, datastore, blockstore, blockBrokers: [bitswap()], routers: [] })
  await helia.start()
  files = unixfs(helia)
  return { peer: libp2p.peerId.toString(), addresses: libp2p.getMultiaddrs().map(String) }
}

async function add (path) {
  const found = await stat(path)
  if (found.isFile()) {
    return files.addByteStream(createReadStream(path))
  }
  let root
  for await (const entry of files.addAll(globSource(path, '**/*'), { wrapWithDirectory: true })) {
    root = entry.cid
  }
  return root
}

async function get (cid, out) {
  const found = await files.stat(cid)
  if (found.type === 'directory') {
    await mkdir(out, { recursive: true })
    for await (const entry of files.ls(cid)) {
      await get(entry.cid, join(out, entry.name))
    }
    return
  }
  await mkdir(dirname(out), { recursive: true })
  const file = createWriteStream(out)
  for await (const bytes of files.cat(cid)) {
    if (!file.write(bytes)) {
      await once(file, 'drain')
    }
  }
  file.end()
  await once(file, 'finish')
}

async function obey (order) {
  switch (order.op) {
    case 'start':
      return start()
    case 'connect':
      await helia.libp2p.dial(multiaddr(order.address))
      return {}
    case 'add':
      return { cid: (await add(order.path)).toString() }
    case 'get': {
      const before = performance.now()
      await get(CID.parse(order.cid), order.out)
      return { seconds: (performance.now() - before) / 1000 }
    }
    default:
      throw new Error(`unknown order ${order.op}`)
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  let answer
  try {
    answer = await obey(JSON.parse(line))
  } catch (error) {
    answer = { error: String(error?.stack ?? error) }
  }
  console.log(JSON.stringify(answer))
}
process.exit(0)
