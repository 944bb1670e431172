//! TLS or Noise on one connection, whichever both sides speak; TLS first. libp2p has the same choice inside its builder,
//! where no other TLS than its own can be named.

use super::tls::{self, TlsError};
use futures::future::{BoxFuture, Either};
use futures::{AsyncRead, AsyncWrite};
use futures_rustls::TlsStream;
use libp2p::core::upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade, UpgradeInfo};
use libp2p::identity::Keypair;
use libp2p::{PeerId, noise};

/// Both upgrades of one identity.
#[derive(Clone)]
pub(super) struct Security {
    tls: tls::Config,
    noise: noise::Config,
}

/// Why a connection could not be secured, or security not be set up.
#[derive(Debug, thiserror::Error)]
pub(super) enum SecurityError {
    /// With TLS.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// With Noise.
    #[error("Noise: {0}")]
    Noise(#[from] noise::Error),
}

impl Security {
    pub(super) fn new(identity: &Keypair) -> Result<Self, SecurityError> {
        Ok(Self {
            tls: tls::Config::new(identity)?,
            noise: noise::Config::new(identity)?,
        })
    }
}

impl UpgradeInfo for Security {
    type Info = &'static str;
    type InfoIter = std::array::IntoIter<&'static str, 2>;

    fn protocol_info(&self) -> Self::InfoIter {
        [tls::NAME, "/noise"].into_iter()
    }
}

type Secured<C> = (PeerId, Either<TlsStream<C>, noise::Output<C>>);

impl<C> InboundConnectionUpgrade<C> for Security
where
    C: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    type Output = Secured<C>;
    type Error = SecurityError;
    type Future = BoxFuture<'static, Result<Secured<C>, SecurityError>>;

    fn upgrade_inbound(self, socket: C, name: Self::Info) -> Self::Future {
        Box::pin(async move {
            if name == tls::NAME {
                let (peer, stream) = self.tls.upgrade_inbound(socket, name).await?;
                return Ok((peer, Either::Left(stream)));
            }
            let (peer, stream) = self.noise.upgrade_inbound(socket, name).await?;
            Ok((peer, Either::Right(stream)))
        })
    }
}

impl<C> OutboundConnectionUpgrade<C> for Security
where
    C: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    type Output = Secured<C>;
    type Error = SecurityError;
    type Future = BoxFuture<'static, Result<Secured<C>, SecurityError>>;

    fn upgrade_outbound(self, socket: C, name: Self::Info) -> Self::Future {
        Box::pin(async move {
            if name == tls::NAME {
                let (peer, stream) = self.tls.upgrade_outbound(socket, name).await?;
                return Ok((peer, Either::Left(stream)));
            }
            let (peer, stream) = self.noise.upgrade_outbound(socket, name).await?;
            Ok((peer, Either::Right(stream)))
        })
    }
}
