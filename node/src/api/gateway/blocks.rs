//! Verifiable answers: one block, or a CAR of everything (<https://specs.ipfs.tech/http-gateways/trustless-gateway/>).

use super::{FOREVER, is_known, not_modified, refused};
use crate::api::ApiError;
use crate::content::command::{Moved, PATIENCE};
use crate::content::{Cid, Content, ContentPath, car};
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use std::io::{self, BufWriter, Write};
use std::sync::Arc;
use tokio::sync::{mpsc, watch};

/// Pieces of a CAR written ahead of whoever takes them.
const AHEAD: usize = 4;
const PIECE: usize = 256 << 10;

pub(super) async fn raw(
    content: &Content,
    path: ContentPath,
    headers: &HeaderMap,
) -> Result<Response, ApiError> {
    let mut demand = content.on_demand(PATIENCE);
    let cid = if path.names.is_empty() {
        path.root
    } else {
        demand.resolve(path).await.map_err(|error| refused(&error))?.cid
    };
    let tag = format!("\"{cid}.raw\"");
    if is_known(headers, &tag) {
        return Ok(not_modified(&tag));
    }
    let internal = |error: crate::content::store::StoreError| ApiError::Internal(error.to_string());
    let mut block = content.get_block(cid).await.map_err(internal)?;
    if block.is_none() {
        demand.block(cid).await.map_err(|error| refused(&error))?;
        block = content.get_block(cid).await.map_err(internal)?;
    }
    let block = block.ok_or_else(|| ApiError::NotFound(format!("block {cid} is not here")))?;
    let mut response = Body::from(block).into_response();
    finish(&mut response, "application/vnd.ipld.raw", &tag);
    Ok(response)
}

pub(super) async fn car(content: &Content, root: Cid) -> Result<Response, ApiError> {
    let (meter, _) = watch::channel(Moved::default());
    content
        .fetch_for_people(root, crate::content::Pin::No, &meter)
        .await
        .map_err(|error| {
            let text = error.to_string();
            if error.is_refusal() {
                ApiError::Refused(text)
            } else {
                ApiError::Timeout(text)
            }
        })?;
    let (sender, receiver) = mpsc::channel(AHEAD);
    let store = Arc::clone(content.store());
    tokio::task::spawn_blocking(move || {
        let mut out = BufWriter::with_capacity(PIECE, Pieces(sender));
        let written = car::write(&store, root, &mut out).map_err(io::Error::other);
        if let Err(error) = written.and_then(|_| out.flush()) {
            // The asker sees a body that ends early, if it has not gone away itself.
            let _ = out.get_ref().0.blocking_send(Err(error));
        }
    });
    let stream = futures::stream::unfold(receiver, |mut receiver| async {
        receiver.recv().await.map(|piece| (piece, receiver))
    });
    let mut response = Body::from_stream(stream).into_response();
    finish(
        &mut response,
        "application/vnd.ipld.car; version=1; order=dfs; dups=n",
        &format!("\"{root}.car\""),
    );
    Ok(response)
}

fn finish(response: &mut Response, kind: &'static str, tag: &str) {
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    headers.insert(header::CACHE_CONTROL, FOREVER);
    if let Ok(tag) = HeaderValue::from_str(tag) {
        headers.insert(header::ETAG, tag);
    }
}

/// Hands what is written to the stream of the answer.
struct Pieces(mpsc::Sender<io::Result<Bytes>>);

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0
            .blocking_send(Ok(Bytes::copy_from_slice(bytes)))
            .map_err(|_| io::ErrorKind::BrokenPipe)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
