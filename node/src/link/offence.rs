//! How a link can break the rules.

/// A breach of the sealed link's rules. The link it came over is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum LinkOffence {
    /// The handshake does not verify.
    #[error("its link handshake does not verify")]
    Handshake,
    /// A sealed frame does not open: its tag or counter is wrong.
    #[error("it sent a sealed frame whose tag is wrong")]
    BadTag,
    /// A frame ended early.
    #[error("it sent a frame that was cut off")]
    Truncated,
    /// A frame longer than allowed was announced.
    #[error("it announced a frame longer than allowed")]
    Oversized,
    /// The header is no header.
    #[error("it sent a frame whose header cannot be read")]
    BadHeader,
    /// The header names another sender.
    #[error("it sent a frame in another member's name")]
    WrongSender,
    /// The header names another receiver.
    #[error("it sent a frame that is meant for somebody else")]
    WrongReceiver,
}

impl LinkOffence {
    /// The same, said to the one who did it.
    #[must_use]
    pub fn to_sender(self) -> String {
        self.to_string()
            .replacen("its ", "your ", 1)
            .replacen("it ", "you ", 1)
    }

    /// Its name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Handshake => "link_handshake",
            Self::BadTag => "bad_tag",
            Self::Truncated => "truncated_frame",
            Self::Oversized => "oversized_frame",
            Self::BadHeader => "bad_link_header",
            Self::WrongSender => "wrong_sender",
            Self::WrongReceiver => "wrong_receiver",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sender_is_addressed() {
        assert_eq!(
            LinkOffence::BadTag.to_sender(),
            "you sent a sealed frame whose tag is wrong"
        );
        assert_eq!(
            LinkOffence::Handshake.to_sender(),
            "your link handshake does not verify"
        );
    }
}
