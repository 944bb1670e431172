//! TLS 1.3 as libp2p specifies it (`/tls/1.0.0`), with the cipher this machine is fastest at.
//!
//! libp2p's own configuration asks for ChaCha20-Poly1305 first, whatever the machine; this one asks for AES-256-GCM first
//! where the processor has AES. Certificates, their checks and the hybrid X25519MLKEM768 exchange are libp2p's.

use futures::future::BoxFuture;
use futures::{AsyncRead, AsyncWrite};
use futures_rustls::{TlsAcceptor, TlsConnector, TlsStream};
use libp2p::PeerId;
use libp2p::core::upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade, UpgradeInfo};
use libp2p::identity::Keypair;
use libp2p::tls::certificate::{self, GenError};
use libp2p::tls::{make_client_config, make_server_config};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::cipher_suite::{
    TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{CertificateDer, IpAddr, Ipv4Addr, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme,
};
use std::io;
use std::sync::Arc;

/// The upgrade's name.
pub(super) const NAME: &str = "/tls/1.0.0";
const ALPN: &[u8] = b"libp2p";
/// Bytes that are encrypted before the socket takes them: a frame of the multiplexer with its header, in one piece.
const BUFFER: usize = super::muxer::FRAME + 16 * 1024;

/// Why a connection could not be secured.
#[derive(Debug, thiserror::Error)]
pub(super) enum TlsError {
    /// The handshake failed.
    #[error("the TLS handshake failed: {0}")]
    Handshake(#[from] io::Error),
    /// The peer showed no certificate, or more than one.
    #[error("the peer showed {0} certificates, one is wanted")]
    Certificates(usize),
    /// The peer's certificate is bad.
    #[error("the peer's certificate is refused: {0}")]
    Certificate(#[from] certificate::ParseError),
    /// The ciphers cannot be configured.
    #[error("TLS cannot be configured: {0}")]
    Config(#[from] rustls::Error),
    /// This node's certificate cannot be made.
    #[error("this node's certificate cannot be made: {0}")]
    Own(#[from] GenError),
}

/// Upgrades a connection to TLS.
#[derive(Clone)]
pub(super) struct Config {
    acceptor: TlsAcceptor,
    connector: TlsConnector,
}

impl Config {
    /// With a fresh certificate for this identity.
    pub(super) fn new(identity: &Keypair) -> Result<Self, TlsError> {
        let provider = Arc::new(provider());
        let versions = &[&rustls::version::TLS13];
        let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Verifier))
            .with_client_cert_resolver(make_client_config(identity, None)?.client_auth_cert_resolver);
        client.alpn_protocols = vec![ALPN.to_vec()];
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)?
            .with_client_cert_verifier(Arc::new(Verifier))
            .with_cert_resolver(make_server_config(identity)?.cert_resolver);
        server.alpn_protocols = vec![ALPN.to_vec()];
        Ok(Self {
            acceptor: Arc::new(server).into(),
            connector: Arc::new(client).into(),
        })
    }
}

fn provider() -> CryptoProvider {
    let mut provider = default_provider();
    provider.cipher_suites = if has_aes() {
        vec![
            TLS13_AES_256_GCM_SHA384,
            TLS13_CHACHA20_POLY1305_SHA256,
            TLS13_AES_128_GCM_SHA256,
        ]
    } else {
        vec![
            TLS13_CHACHA20_POLY1305_SHA256,
            TLS13_AES_256_GCM_SHA384,
            TLS13_AES_128_GCM_SHA256,
        ]
    };
    provider
}

/// Whether the processor computes AES itself.
fn has_aes() -> bool {
    #[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
    {
        std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq")
    }
    #[cfg(target_arch = "aarch64")]
    {
        std::arch::is_aarch64_feature_detected!("aes")
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "x86", target_arch = "aarch64")))]
    {
        false
    }
}

impl UpgradeInfo for Config {
    type Info = &'static str;
    type InfoIter = std::iter::Once<Self::Info>;

    fn protocol_info(&self) -> Self::InfoIter {
        std::iter::once(NAME)
    }
}

type Secured<C> = (PeerId, TlsStream<C>);

impl<C> InboundConnectionUpgrade<C> for Config
where
    C: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    type Output = Secured<C>;
    type Error = TlsError;
    type Future = BoxFuture<'static, Result<Secured<C>, TlsError>>;

    fn upgrade_inbound(self, socket: C, _: Self::Info) -> Self::Future {
        Box::pin(async move {
            let mut stream = self.acceptor.accept(socket).await?;
            stream.get_mut().1.set_buffer_limit(Some(BUFFER));
            identified(stream.into())
        })
    }
}

impl<C> OutboundConnectionUpgrade<C> for Config
where
    C: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    type Output = Secured<C>;
    type Error = TlsError;
    type Future = BoxFuture<'static, Result<Secured<C>, TlsError>>;

    fn upgrade_outbound(self, socket: C, _: Self::Info) -> Self::Future {
        // An unspecified address keeps the server's name out of the handshake, as libp2p asks.
        let name = ServerName::IpAddress(IpAddr::V4(Ipv4Addr::from([0, 0, 0, 0])));
        Box::pin(async move {
            let mut stream = self.connector.connect(name, socket).await?;
            stream.get_mut().1.set_buffer_limit(Some(BUFFER));
            identified(stream.into())
        })
    }
}

/// Whose certificate the peer proved to hold.
fn identified<C>(stream: TlsStream<C>) -> Result<Secured<C>, TlsError> {
    let shown = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let [one] = shown else {
        return Err(TlsError::Certificates(shown.len()));
    };
    let peer = certificate::parse(one)?.peer_id();
    Ok((peer, stream))
}

/// Takes exactly one certificate, self-signed, with libp2p's extension: who it names is for the swarm to compare.
#[derive(Debug)]
struct Verifier;

impl Verifier {
    fn check(leaf: &CertificateDer<'_>, others: &[CertificateDer<'_>]) -> Result<(), rustls::Error> {
        if !others.is_empty() {
            return Err(rustls::Error::General(
                "more than one certificate where libp2p wants exactly one".into(),
            ));
        }
        certificate::parse(leaf).map(drop).map_err(refused)
    }

    fn signature(
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let leaf = certificate::parse(leaf).map_err(refused)?;
        match leaf.verify_signature(signed.scheme, message, signed.signature()) {
            Ok(()) => Ok(HandshakeSignatureValid::assertion()),
            Err(_) => Err(rustls::Error::InvalidCertificate(CertificateError::BadSignature)),
        }
    }

    fn schemes() -> Vec<SignatureScheme> {
        vec![
            SignatureScheme::ECDSA_NISTP384_SHA384,
            SignatureScheme::ECDSA_NISTP256_SHA256,
            SignatureScheme::ED25519,
            SignatureScheme::RSA_PSS_SHA512,
            SignatureScheme::RSA_PSS_SHA384,
            SignatureScheme::RSA_PSS_SHA256,
            SignatureScheme::RSA_PKCS1_SHA512,
            SignatureScheme::RSA_PKCS1_SHA384,
            SignatureScheme::RSA_PKCS1_SHA256,
        ]
    }
}

fn refused(error: certificate::ParseError) -> rustls::Error {
    rustls::Error::General(format!("the peer's certificate is refused: {error}"))
}

/// Only TLS 1.3 is offered.
fn old_tls() -> Result<HandshakeSignatureValid, rustls::Error> {
    Err(rustls::Error::General("TLS 1.2 is not spoken".into()))
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Self::check(leaf, others).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        old_tls()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Self::signature(message, leaf, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        Self::schemes()
    }
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Self::check(leaf, others).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        old_tls()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Self::signature(message, leaf, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        Self::schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libp2p::tcp::tokio::TcpStream;
    use rustls::{CipherSuite, NamedGroup};

    async fn sockets() -> (TcpStream, TcpStream) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (dialled, accepted) = tokio::join!(tokio::net::TcpStream::connect(address), listener.accept());
        (TcpStream(dialled.unwrap()), TcpStream(accepted.unwrap().0))
    }

    #[tokio::test]
    async fn the_machines_cipher_and_the_hybrid_exchange_are_used() {
        let (a, b) = (Keypair::generate_ed25519(), Keypair::generate_ed25519());
        let (near, far) = sockets().await;
        let (out, within) = tokio::join!(
            Config::new(&a).unwrap().upgrade_outbound(near, NAME),
            Config::new(&b).unwrap().upgrade_inbound(far, NAME)
        );
        let ((server, stream), (client, _)) = (out.unwrap(), within.unwrap());
        assert_eq!(
            (server, client),
            (b.public().to_peer_id(), a.public().to_peer_id())
        );
        let session = stream.get_ref().1;
        let suite = session.negotiated_cipher_suite().unwrap().suite();
        assert_eq!(has_aes(), suite == CipherSuite::TLS13_AES_256_GCM_SHA384);
        let group = session.negotiated_key_exchange_group().unwrap().name();
        assert_eq!(group, NamedGroup::X25519MLKEM768);
    }

    #[tokio::test]
    async fn libp2ps_own_tls_understands_it() {
        let (a, b) = (Keypair::generate_ed25519(), Keypair::generate_ed25519());
        let theirs = |key| libp2p::tls::Config::new(key).unwrap();
        let (near, far) = sockets().await;
        let (out, within) = tokio::join!(
            Config::new(&a).unwrap().upgrade_outbound(near, NAME),
            theirs(&b).upgrade_inbound(far, NAME)
        );
        assert_eq!(out.unwrap().0, b.public().to_peer_id());
        assert_eq!(within.unwrap().0, a.public().to_peer_id());
        let (near, far) = sockets().await;
        let (out, within) = tokio::join!(
            theirs(&a).upgrade_outbound(near, NAME),
            Config::new(&b).unwrap().upgrade_inbound(far, NAME)
        );
        assert_eq!(out.unwrap().0, b.public().to_peer_id());
        assert_eq!(within.unwrap().0, a.public().to_peer_id());
    }
}
