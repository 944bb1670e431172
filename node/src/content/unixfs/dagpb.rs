//! dag-pb: a list of named, sized links and some bytes. Links are written before data, as every IPFS node does.

use bytes::Bytes;
use cid::Cid;

use super::NodeError;
use crate::content::wire::{Reader, Value, put_bytes, put_number};

/// A link to another block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) cid: Cid,
    pub(super) name: String,
    /// Declared bytes of everything under the link, blocks included; a hint, never trusted.
    pub(super) total_size: u64,
}

/// A decoded dag-pb block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PbNode {
    pub(super) links: Vec<Link>,
    pub(super) data: Bytes,
}

impl PbNode {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.data.len() + 64 * self.links.len());
        for link in &self.links {
            put_bytes(&mut out, 2, &encode_link(link));
        }
        put_bytes(&mut out, 1, &self.data);
        out
    }

    /// Decodes a block; every link must carry a CID, which bounds the memory by the block's size.
    pub(super) fn decode(block: &Bytes) -> Result<Self, NodeError> {
        let (mut links, mut data) = (Vec::new(), Bytes::new());
        let mut fields = Reader::new(block);
        while let Some(field) = fields.next_field()? {
            match field {
                (1, Value::Bytes(bytes)) => data = block.slice_ref(bytes),
                (2, Value::Bytes(bytes)) => links.push(decode_link(bytes)?),
                (number, _) => return Err(NodeError::UnknownField { number }),
            }
        }
        Ok(Self { links, data })
    }

    /// The CIDs a block links to and their total sizes, without its names.
    pub(super) fn decode_links(block: &[u8]) -> Result<Vec<(Cid, u64)>, NodeError> {
        let mut links = Vec::new();
        let mut fields = Reader::new(block);
        while let Some(field) = fields.next_field()? {
            if let (2, Value::Bytes(bytes)) = field {
                let link = decode_link(bytes)?;
                links.push((link.cid, link.total_size));
            }
        }
        Ok(links)
    }
}

fn encode_link(link: &Link) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    put_bytes(&mut out, 1, &link.cid.to_bytes());
    put_bytes(&mut out, 2, link.name.as_bytes());
    put_number(&mut out, 3, link.total_size);
    out
}

fn decode_link(bytes: &[u8]) -> Result<Link, NodeError> {
    let (mut cid, mut name, mut total_size) = (None, String::new(), 0);
    let mut fields = Reader::new(bytes);
    while let Some(field) = fields.next_field()? {
        match field {
            (1, Value::Bytes(hash)) => cid = Some(Cid::try_from(hash).map_err(|_| NodeError::BadLink)?),
            (2, Value::Bytes(text)) => {
                name = std::str::from_utf8(text)
                    .map_err(|_| NodeError::BadLink)?
                    .to_owned();
            }
            (3, Value::Varint(size)) => total_size = size,
            (number, _) => return Err(NodeError::UnknownField { number }),
        }
    }
    Ok(Link {
        cid: cid.ok_or(NodeError::BadLink)?,
        name,
        total_size,
    })
}
