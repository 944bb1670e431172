//! CARs: the blocks that lead to a path's end and as much of what is under it as is asked for, streamed
//! (<https://specs.ipfs.tech/http-gateways/trustless-gateway/#car-responses-application-vnd-ipld-car>).

use super::blocks::finish;
use super::wanted::{Part, Wanted};
use super::{Asked, FOREVER, is_known, not_modified, refused};
use crate::api::ApiError;
use crate::content::car::{CarError, Duplicates, Frames, More};
use crate::content::command::Moved;
use crate::content::store::Hold;
use crate::content::unixfs::{ReadError, Scope};
use crate::content::{Cid, Content, Demand, DemandError, Pin, SLOWEST_READER, block};
use axum::BoxError;
use axum::body::{Body, Bytes};
use axum::http::Method;
use axum::response::{IntoResponse, Response};
use tokio::sync::{mpsc, watch};

/// Pieces written ahead of whoever takes them.
const AHEAD: usize = 4;
const PIECE: usize = 256 << 10;

/// The blocks in `way`, which lead to the path's end, and what is wanted of that.
pub(super) async fn serve(
    asked: &Asked<'_>,
    way: Vec<Cid>,
    mut demand: Demand,
    wanted: Wanted,
) -> Result<Response, ApiError> {
    let (content, end) = (asked.content, asked.end);
    // The same end under another path comes with other blocks.
    let name = if asked.path.names.is_empty() {
        end.to_string()
    } else {
        asked.path.to_url().trim_start_matches("/ipfs/").to_owned()
    };
    let tag = format!("\"{}{name}.car\"", wanted.tag());
    if is_known(&asked.headers, &tag) {
        return Ok(not_modified(&tag, FOREVER));
    }
    let kept = content.store().hold(asked.path.root);
    demand.if_absent(end).await.map_err(|error| refused(&error))?;
    let entity = match wanted.part {
        Part::All | Part::Block => Entity::Other,
        Part::Entity | Part::Bytes(_) => Entity::of(end, &mut demand).await?,
    };
    let scope = match (wanted.part, entity) {
        (Part::All, _) => Scope::All,
        (Part::Block, _) => Scope::Block,
        (Part::Bytes(offsets), Entity::File { size }) => offsets.of(size)?,
        (Part::Entity | Part::Bytes(_), _) => Scope::Entity,
    };
    let body = if asked.method == Method::HEAD {
        // Its length is not known without fetching all of it.
        Body::from_stream(futures::stream::empty::<Result<Bytes, BoxError>>())
    } else {
        match (&scope, entity) {
            (Scope::All, _) | (Scope::Entity, Entity::File { .. }) => fetch(content, end).await?,
            (Scope::Entity, Entity::Directory) => {
                let listed = demand.ls(end.into()).await;
                listed.map_err(|error| refused(&error))?;
            }
            // What a range lacks comes block by block.
            (Scope::Block | Scope::Entity | Scope::Bytes(_), _) => {}
        }
        let frames = Frames::new(end, &way, scope, wanted.duplicates);
        let frames = frames.map_err(|error| ApiError::Internal(error.to_string()))?;
        let (sender, receiver) = mpsc::channel(AHEAD);
        let outgoing = Outgoing {
            content: content.clone(),
            demand,
            frames,
            _kept: kept,
        };
        tokio::spawn(outgoing.send(sender));
        Body::from_stream(futures::stream::unfold(receiver, |mut receiver| async {
            receiver.recv().await.map(|piece| (piece, receiver))
        }))
    };
    let mut response = body.into_response();
    let kind = match wanted.duplicates {
        Duplicates::Once => "application/vnd.ipld.car; version=1; order=dfs; dups=n",
        Duplicates::EachTime => "application/vnd.ipld.car; version=1; order=dfs; dups=y",
    };
    finish(&mut response, kind, &tag, &format!("{end}.car"));
    Ok(response)
}

/// Everything under a root, before a byte is sent: who asked is told when it is refused or does not come.
async fn fetch(content: &Content, root: Cid) -> Result<(), ApiError> {
    let (meter, _) = watch::channel(Moved::default());
    let fetched = content.fetch_for_people(root, Pin::No, &meter).await;
    fetched.map(|_| ()).map_err(|error| {
        let text = error.to_string();
        if error.is_refusal() {
            ApiError::Refused(text)
        } else {
            ApiError::Timeout(text)
        }
    })
}

/// What a path ends in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entity {
    File {
        size: u64,
    },
    Directory,
    /// One block, whatever it links to.
    Other,
}

impl Entity {
    async fn of(cid: Cid, demand: &mut Demand) -> Result<Self, ApiError> {
        if ![block::RAW, block::DAG_PB].contains(&cid.codec()) {
            return Ok(Self::Other);
        }
        match demand.file_size(cid.into()).await {
            Ok(size) => Ok(Self::File { size }),
            Err(DemandError::Read(ReadError::IsDirectory { .. })) => Ok(Self::Directory),
            Err(DemandError::Read(ReadError::Symlink { .. })) => Ok(Self::Other),
            Err(error) => Err(refused(&error)),
        }
    }
}

/// A CAR on its way out. What it holds is not collected meanwhile, and no thread waits for a slow taker.
struct Outgoing {
    content: Content,
    demand: Demand,
    frames: Frames,
    _kept: Hold,
}

impl Outgoing {
    /// Sends pieces until the CAR is whole, fails, or nobody takes them. The asker of one that fails sees a body that ends
    /// early.
    async fn send(mut self, sender: mpsc::Sender<Result<Bytes, BoxError>>) {
        loop {
            let mut frames = self.frames;
            let piece = self.content.reading(move |store| {
                let mut piece = Vec::new();
                let mut more = Ok(More::Yes);
                while piece.len() < PIECE && matches!(more, Ok(More::Yes)) {
                    more = frames.append_to(store, &mut piece);
                }
                (piece, more, frames)
            });
            let (piece, more, frames) = tokio::select! {
                piece = piece => piece,
                () = sender.closed() => return,
            };
            self.frames = frames;
            if !piece.is_empty() && !give(&sender, Ok(piece.into())).await {
                return;
            }
            let failed: BoxError = match more {
                Ok(More::Yes) => continue,
                Ok(More::No) => return,
                Err(CarError::Missing { cid }) => tokio::select! {
                    came = self.demand.block(cid) => match came {
                        Ok(()) => continue,
                        Err(error) => error.into(),
                    },
                    () = sender.closed() => return,
                },
                Err(error) => error.into(),
            };
            tracing::info!(error = %failed, "a CAR could not be served to its end");
            give(&sender, Err(failed)).await;
            return;
        }
    }
}

/// Whether it was taken.
async fn give(sender: &mpsc::Sender<Result<Bytes, BoxError>>, piece: Result<Bytes, BoxError>) -> bool {
    sender.send_timeout(piece, SLOWEST_READER).await.is_ok()
}
