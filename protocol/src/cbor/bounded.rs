//! Collections that refuse to grow past their bound while they are decoded.

use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use std::{fmt, marker::PhantomData, ops::Deref};

/// More elements, or bytes, than the type allows.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{got} elements where at most {max} are allowed")]
pub struct TooMany {
    /// Elements or bytes given.
    pub got: usize,
    /// The type's bound.
    pub max: usize,
}

/// A list of at most `N` elements.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bounded<T, const N: usize>(Vec<T>);

/// A byte string of at most `N` bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct BoundedBytes<const N: usize>(Vec<u8>);

/// A text of at most `N` bytes of UTF-8.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct BoundedText<const N: usize>(String);

impl<T, const N: usize> Default for Bounded<T, N> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T, const N: usize> Bounded<T, N> {
    /// The elements as a plain vector.
    #[must_use]
    pub fn into_inner(self) -> Vec<T> {
        self.0
    }
}

impl<const N: usize> BoundedBytes<N> {
    /// The bytes as a plain vector.
    #[must_use]
    pub fn into_inner(self) -> Vec<u8> {
        self.0
    }
}

impl<const N: usize> BoundedText<N> {
    /// The text as a plain string.
    #[must_use]
    pub fn into_inner(self) -> String {
        self.0
    }
}

macro_rules! from_checked {
    ($(<$($p:ident)?> $name:ty, $inner:ty, $target:ty);* $(;)?) => {
        $(impl<$($p,)? const N: usize> TryFrom<$inner> for $name {
            type Error = TooMany;

            fn try_from(inner: $inner) -> Result<Self, TooMany> {
                let got = inner.len();
                if got > N {
                    return Err(TooMany { got, max: N });
                }
                Ok(Self(inner))
            }
        }

        impl<$($p,)? const N: usize> Deref for $name {
            type Target = $target;

            fn deref(&self) -> &$target {
                &self.0
            }
        })*
    };
}

from_checked! {
    <T> Bounded<T, N>, Vec<T>, [T];
    <> BoundedBytes<N>, Vec<u8>, [u8];
    <> BoundedText<N>, String, str;
}

impl<T: Serialize, const N: usize> Serialize for Bounded<T, N> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(s)
    }
}

impl<const N: usize> Serialize for BoundedBytes<N> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_bytes(&self.0)
    }
}

impl<const N: usize> Serialize for BoundedText<N> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&self.0)
    }
}

impl<'de, T: Deserialize<'de>, const N: usize> Deserialize<'de> for Bounded<T, N> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_seq(ListVisitor::<T, N>(PhantomData))
    }
}

struct ListVisitor<T, const N: usize>(PhantomData<T>);

/// Elements set aside for on the word of a length that is not yet backed by bytes.
const PREALLOCATED: usize = 64;

impl<'de, T: Deserialize<'de>, const N: usize> Visitor<'de> for ListVisitor<T, N> {
    type Value = Bounded<T, N>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {N} elements")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let claimed = seq.size_hint().unwrap_or(0);
        if claimed > N {
            return Err(de::Error::invalid_length(claimed, &self));
        }
        let mut list = Vec::with_capacity(claimed.min(PREALLOCATED));
        while let Some(element) = seq.next_element()? {
            if list.len() == N {
                return Err(de::Error::invalid_length(N + 1, &self));
            }
            list.push(element);
        }
        Ok(Bounded(list))
    }
}

impl<'de, const N: usize> Deserialize<'de> for BoundedBytes<N> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_bytes(BytesVisitor::<N>)
    }
}

struct BytesVisitor<const N: usize>;

impl<const N: usize> Visitor<'_> for BytesVisitor<N> {
    type Value = BoundedBytes<N>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {N} bytes")
    }

    fn visit_bytes<E: de::Error>(self, v: &[u8]) -> Result<Self::Value, E> {
        if v.len() > N {
            return Err(E::invalid_length(v.len(), &self));
        }
        Ok(BoundedBytes(v.to_vec()))
    }
}

impl<'de, const N: usize> Deserialize<'de> for BoundedText<N> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_str(TextVisitor::<N>)
    }
}

struct TextVisitor<const N: usize>;

impl<const N: usize> Visitor<'_> for TextVisitor<N> {
    type Value = BoundedText<N>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a text of at most {N} bytes")
    }

    fn visit_str<E: de::Error>(self, v: &str) -> Result<Self::Value, E> {
        if v.len() > N {
            return Err(E::invalid_length(v.len(), &self));
        }
        Ok(BoundedText(v.to_owned()))
    }
}
