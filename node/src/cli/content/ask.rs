//! Where a command is carried out: by the running node, or here on the store that no node has.

use crate::api::{Client, ClientError};
use crate::cli::bar::Bar;
use crate::config::Config;
use crate::content::command::{Command, CommandError, Moved, PATIENCE};
use crate::content::unixfs::Layout;
use crate::content::{self, Content, ContentPath, bitswap};
use crate::home::{Home, HomeLock};
use anyhow::Context as _;
use serde_json::Value;
use std::io::{self, Read, Write};
use std::ops::Range;
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// Who carries commands out.
pub(super) enum Place {
    Node(Client),
    Store(Store),
}

/// The store of a home without a running node, kept from one for as long as the command takes.
pub(super) struct Store {
    content: Content,
    runtime: Runtime,
    _lock: HomeLock,
}

impl Place {
    /// The node running in `home`, or the home's store.
    pub(super) fn find(home: &Home) -> anyhow::Result<Self> {
        match Client::connect(home).and_then(|client| client.answers().map(|()| client)) {
            Ok(client) => Ok(Self::Node(client)),
            Err(ClientError::NotRunning(_)) => Ok(Self::Store(Store::open(home)?)),
            Err(error) => Err(error.into()),
        }
    }

    /// Carries a command out, showing how far it is.
    pub(super) fn ask(&self, command: &Command) -> anyhow::Result<Value> {
        let mut bar = Bar::new();
        match self {
            Self::Node(client) => {
                let order = serde_json::to_value(command)?;
                let told = |progress| {
                    if let Ok(moved) = serde_json::from_value(progress) {
                        bar.at(moved);
                    }
                };
                Ok(client.post_lines("/v1/content", &order, told)?)
            }
            Self::Store(store) => store.runtime.block_on(store.run(command.clone(), &mut bar)),
        }
    }
}

impl Store {
    fn open(home: &Home) -> anyhow::Result<Self> {
        home.create()?;
        let lock = home.lock()?;
        let config = Config::load(&home.config())?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .context("starting a runtime")?;
        let (content, _no_network) = content::open(content::Config {
            root: home.content(),
            limit: config.content.limit_mib.saturating_mul(1 << 20),
            layout: Layout::default(),
            bitswap: bitswap::Config::default(),
        })?;
        Ok(Self {
            content,
            runtime,
            _lock: lock,
        })
    }

    async fn run(&self, command: Command, bar: &mut Bar) -> anyhow::Result<Value> {
        let (meter, mut moved) = watch::channel(Moved::default());
        let work = self.content.run(command, meter);
        tokio::pin!(work);
        loop {
            tokio::select! {
                answer = &mut work => return Ok(answer?),
                Ok(()) = moved.changed() => bar.at(*moved.borrow_and_update()),
            }
        }
    }
}

/// Writes a file, or a part of it, to standard output. A reader that goes away (`| head`) is no error.
pub(super) fn cat(place: &Place, path: &str, offset: u64, length: Option<u64>) -> anyhow::Result<()> {
    let source: ContentPath = path.parse()?;
    let mut out = io::stdout().lock();
    let copied = match place {
        Place::Node(client) => match client.read_content(&source, offset, length)? {
            Some(mut body) => copy(&mut body, &mut out)?,
            None => Ok(()),
        },
        Place::Store(store) => {
            let end = length.map_or(u64::MAX, |length| offset.saturating_add(length));
            store
                .runtime
                .block_on(cat_here(&store.content, source, offset..end, &mut out))?
        }
    };
    match copied.and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("writing to standard output")
        }
        _ => Ok(()),
    }
}

async fn cat_here(
    content: &Content,
    source: ContentPath,
    bytes: Range<u64>,
    out: &mut impl Write,
) -> Result<io::Result<()>, CommandError> {
    let mut stream = content.stream(source, bytes, PATIENCE).await?;
    while let Some(bytes) = stream.next().await? {
        if let Err(error) = out.write_all(&bytes) {
            return Ok(Err(error));
        }
    }
    Ok(Ok(()))
}

/// Copies to the end; tells a reader's failure from a writer's.
fn copy(from: &mut impl Read, to: &mut impl Write) -> anyhow::Result<io::Result<()>> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let count = from
            .read(&mut buffer)
            .context("the node ended the file early; its log says why")?;
        if count == 0 {
            return Ok(Ok(()));
        }
        if let Err(error) = to.write_all(&buffer[..count]) {
            return Ok(Err(error));
        }
    }
}
