//! Packed CBOR: what serde_cbor's own `packed_format` leaves as maps with numbered keys becomes arrays in field order.

use serde::ser::{self, Error as _, Serialize};
use serde_cbor::{Deserializer, Error, Serializer, ser::IoWrite};

pub(super) fn to_vec<T: Serialize>(value: &T) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let mut packed = Packed {
        cbor: Serializer::new(IoWrite::new(&mut bytes)).packed_format(),
    };
    value.serialize(&mut packed)?;
    Ok(bytes)
}

pub(super) fn from_slice<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    let mut cbor = Deserializer::from_slice(bytes)
        .disable_named_format()
        .disable_standard_enums();
    let value = T::deserialize(&mut cbor)?;
    cbor.end()?;
    Ok(value)
}

type Cbor<'a> = Serializer<IoWrite<&'a mut Vec<u8>>>;

struct Packed<'a> {
    cbor: Cbor<'a>,
}

impl Packed<'_> {
    fn array(&mut self, len: usize) -> Result<&mut Self, Error> {
        ser::Serializer::serialize_tuple(&mut self.cbor, len)?;
        Ok(self)
    }

    fn variant(&mut self, index: u32, fields: usize) -> Result<&mut Self, Error> {
        self.array(1 + fields)?;
        ser::Serializer::serialize_u32(&mut self.cbor, index)?;
        Ok(self)
    }
}

macro_rules! plain {
    ($($method:ident: $ty:ty),* $(,)?) => {
        $(fn $method(self, v: $ty) -> Result<(), Error> {
            ser::Serializer::$method(&mut self.cbor, v)
        })*
    };
}

impl ser::Serializer for &mut Packed<'_> {
    type Ok = ();
    type Error = Error;
    type SerializeSeq = Self;
    type SerializeTuple = Self;
    type SerializeTupleStruct = Self;
    type SerializeTupleVariant = Self;
    type SerializeMap = ser::Impossible<(), Error>;
    type SerializeStruct = Self;
    type SerializeStructVariant = Self;

    plain! {
        serialize_bool: bool, serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64,
        serialize_i128: i128, serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64,
        serialize_u128: u128, serialize_char: char, serialize_str: &str, serialize_bytes: &[u8],
    }

    fn serialize_f32(self, _: f32) -> Result<(), Error> {
        Err(Error::custom("wire messages hold no floats"))
    }

    fn serialize_f64(self, _: f64) -> Result<(), Error> {
        Err(Error::custom("wire messages hold no floats"))
    }

    fn serialize_none(self) -> Result<(), Error> {
        ser::Serializer::serialize_none(&mut self.cbor)
    }

    fn serialize_some<T: ?Sized + Serialize>(self, value: &T) -> Result<(), Error> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), Error> {
        self.serialize_none()
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<(), Error> {
        self.array(0).map(drop)
    }

    fn serialize_unit_variant(self, _: &'static str, index: u32, _: &'static str) -> Result<(), Error> {
        self.serialize_u32(index)
    }

    fn serialize_newtype_struct<T: ?Sized + Serialize>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: ?Sized + Serialize>(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        value.serialize(self.variant(index, 1)?)
    }

    fn serialize_seq(self, len: Option<usize>) -> Result<Self, Error> {
        self.array(len.ok_or_else(|| Error::custom("wire sequences have a definite length"))?)
    }

    fn serialize_tuple(self, len: usize) -> Result<Self, Error> {
        self.array(len)
    }

    fn serialize_tuple_struct(self, _: &'static str, len: usize) -> Result<Self, Error> {
        self.array(len)
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
        len: usize,
    ) -> Result<Self, Error> {
        self.variant(index, len)
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Self::SerializeMap, Error> {
        Err(Error::custom("wire messages hold no maps"))
    }

    fn serialize_struct(self, _: &'static str, len: usize) -> Result<Self, Error> {
        self.array(len)
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
        len: usize,
    ) -> Result<Self, Error> {
        self.variant(index, 1)?.array(len)
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

macro_rules! elements {
    ($($trait:ident::$method:ident($($key:ty)?)),* $(,)?) => {
        $(impl ser::$trait for &mut Packed<'_> {
            type Ok = ();
            type Error = Error;

            fn $method<T: ?Sized + Serialize>(&mut self, $(_: $key,)? value: &T) -> Result<(), Error> {
                value.serialize(&mut **self)
            }

            fn end(self) -> Result<(), Error> {
                Ok(())
            }
        })*
    };
}

elements! {
    SerializeSeq::serialize_element(),
    SerializeTuple::serialize_element(),
    SerializeTupleStruct::serialize_field(),
    SerializeTupleVariant::serialize_field(),
    SerializeStruct::serialize_field(&'static str),
    SerializeStructVariant::serialize_field(&'static str),
}
