//! `hanzod model pull | push`.

use super::bar::Bar;
use super::output::{Output, text};
use crate::hub::{self, Hub, Repo, Visibility};
use clap::Args;
use indicatif::HumanBytes;
use serde_json::json;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(super) struct Server {
    /// The Hub, or a server that speaks the same
    #[arg(long, env = "HF_ENDPOINT", default_value = hub::ENDPOINT, value_name = "URL")]
    endpoint: String,
}

/// The token of a private or gated model, or of a push, is taken from the variable HF_TOKEN.
#[derive(Debug, Args)]
pub(super) struct PullArgs {
    /// The model's name on the Hub, such as Qwen/Qwen3-0.6B
    repo: Repo,
    /// A branch, tag or commit
    #[arg(long, default_value = "main")]
    revision: String,
    /// Where to put the files [default: the model's name, in the current directory]
    #[arg(long, short, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    server: Server,
}

/// The token of an account that may write there is taken from the variable HF_TOKEN.
#[derive(Debug, Args)]
pub(super) struct PushArgs {
    /// The directory, such as a checkpoint that `hanzod content get` wrote
    dir: PathBuf,
    /// The repository, owner/name; it is made if there is none
    repo: Repo,
    /// What the commit is called
    #[arg(long, short, default_value = "Add files")]
    message: String,
    /// Make a new repository public
    #[arg(long)]
    public: bool,
    #[command(flatten)]
    server: Server,
}

pub(super) fn pull(output: Output, args: &PullArgs) -> anyhow::Result<()> {
    let name = args.repo.to_string();
    let last = name.rsplit('/').next().unwrap_or(&name);
    let out = std::path::absolute(args.out.clone().unwrap_or_else(|| last.into()))?;
    let mut bar = Bar::new();
    let server = Hub::new(&args.server.endpoint)?;
    let pulled = hub::pull(&server, &args.repo, &args.revision, &out, |moved| bar.at(moved))?;
    drop(bar);
    output.show(&json!(pulled), |_| {
        format!(
            "{} files ({}) of commit {} in {}; {} came over the network, every hash is right\nnext: hanzod model check {}",
            pulled.files,
            HumanBytes(pulled.bytes),
            pulled.commit,
            out.display(),
            HumanBytes(pulled.fetched),
            out.display()
        )
    });
    Ok(())
}

pub(super) fn push(output: Output, args: &PushArgs) -> anyhow::Result<()> {
    let visibility = if args.public {
        Visibility::Public
    } else {
        Visibility::Private
    };
    let server = Hub::new(&args.server.endpoint)?;
    let pushed = hub::push(&server, &args.repo, &args.dir, &args.message, visibility)?;
    output.show(&json!(pushed), |pushed| text(pushed, "url"));
    Ok(())
}
