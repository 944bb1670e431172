//! One block as it is, and what all verifiable answers have in common
//! (<https://specs.ipfs.tech/http-gateways/trustless-gateway/>).

use super::{Asked, FOREVER, cached, is_known, not_modified, refused};
use crate::api::ApiError;
use crate::content::Demand;
use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};

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

/// Headers of an answer that is to be saved and never changes.
pub(super) fn finish(response: &mut Response, kind: &'static str, tag: &str, name: &str) {
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
