//! Verifiable answers: one block, or a CAR (<https://specs.ipfs.tech/http-gateways/trustless-gateway/>).

use super::{Asked, FOREVER, cached, is_known, not_modified, refused};
use crate::api::ApiError;
use crate::content::car::{CarError, Frames, More};
use crate::content::command::{Moved, PATIENCE};
use crate::content::store::Hold;
use crate::content::{Cid, Content, Demand, Pin, SLOWEST_READER};
use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Method, header};
use axum::response::{IntoResponse, Response};
use std::convert::Infallible;
use tokio::sync::{mpsc, watch};

/// Pieces of a CAR written ahead of whoever takes them.
const AHEAD: usize = 4;
const PIECE: usize = 256 << 10;

pub(super) async fn raw(asked: &Asked<'_>, mut demand: Demand) -> Result<Response, ApiError> {
    let cid = asked.end;
    let tag = format!("\"{cid}.raw\"");
    if is_known(&asked.headers, &tag) {
        return Ok(not_modified(&tag, FOREVER));
    }
    let internal = |error: crate::content::store::StoreError| ApiError::Internal(error.to_string());
    let mut block = asked.content.get_block(cid).await.map_err(internal)?;
    if block.is_none() {
        demand.block(cid).await.map_err(|error| refused(&error))?;
        block = asked.content.get_block(cid).await.map_err(internal)?;
    }
    let block = block.ok_or_else(|| ApiError::NotFound(format!("block {cid} is not here")))?;
    let mut response = Body::from(block).into_response();
    finish(
        &mut response,
        "application/vnd.ipld.raw",
        &tag,
        &format!("{cid}.bin"),
    );
    Ok(response)
}

/// The blocks in `way`, which lead to the path's end, and everything under that.
pub(super) async fn car(asked: &Asked<'_>, way: Vec<Cid>) -> Result<Response, ApiError> {
    let (content, end) = (asked.content, asked.end);
    // The same end under another path comes with other blocks.
    let tag = if asked.path.names.is_empty() {
        format!("\"{end}.car\"")
    } else {
        format!("\"{}.car\"", asked.path.to_url().trim_start_matches("/ipfs/"))
    };
    if is_known(&asked.headers, &tag) {
        return Ok(not_modified(&tag, FOREVER));
    }
    let body = if asked.method == Method::HEAD {
        // Its length is not known without fetching all of it.
        content
            .on_demand(PATIENCE)
            .if_absent(end)
            .await
            .map_err(|error| refused(&error))?;
        Body::from_stream(futures::stream::empty::<Result<Bytes, Infallible>>())
    } else {
        let kept = content.store().hold(asked.path.root);
        let (meter, _) = watch::channel(Moved::default());
        content
            .fetch_for_people(end, Pin::No, &meter)
            .await
            .map_err(|error| {
                let text = error.to_string();
                if error.is_refusal() {
                    ApiError::Refused(text)
                } else {
                    ApiError::Timeout(text)
                }
            })?;
        let frames = Frames::new(end, &way).map_err(|error| ApiError::Internal(error.to_string()))?;
        let (sender, receiver) = mpsc::channel(AHEAD);
        tokio::spawn(send(content.clone(), kept, frames, sender));
        Body::from_stream(futures::stream::unfold(receiver, |mut receiver| async {
            receiver.recv().await.map(|piece| (piece, receiver))
        }))
    };
    let mut response = body.into_response();
    let kind = "application/vnd.ipld.car; version=1; order=dfs; dups=n";
    finish(&mut response, kind, &tag, &format!("{end}.car"));
    Ok(response)
}

/// Sends pieces until the CAR is whole, fails, or nobody takes them. What it holds is not collected meanwhile, and no thread
/// waits for a slow taker.
async fn send(
    content: Content,
    _kept: Hold,
    mut frames: Frames,
    sender: mpsc::Sender<Result<Bytes, CarError>>,
) {
    loop {
        let piece = content.reading(move |store| {
            let mut piece = Vec::new();
            let mut more = Ok(More::Yes);
            while piece.len() < PIECE && matches!(more, Ok(More::Yes)) {
                more = frames.append_to(store, &mut piece);
            }
            (piece, more, frames)
        });
        let (piece, more, rest) = tokio::select! {
            piece = piece => piece,
            () = sender.closed() => return,
        };
        frames = rest;
        let is_last = !matches!(more, Ok(More::Yes));
        // The asker sees a body that ends early, if it has not gone away itself.
        let piece = more.map(|_| Bytes::from(piece));
        if sender.send_timeout(piece, SLOWEST_READER).await.is_err() || is_last {
            return;
        }
    }
}

fn finish(response: &mut Response, kind: &'static str, tag: &str, name: &str) {
    cached(response, tag, FOREVER);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    if let Ok(shown) = HeaderValue::from_str(&format!("attachment; filename=\"{name}\"")) {
        headers.insert(header::CONTENT_DISPOSITION, shown);
    }
}
