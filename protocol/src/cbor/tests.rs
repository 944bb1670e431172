use super::*;
use crate::ids::{PeerBytes, Round};
use serde::Deserialize;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Hop {
    round: Round,
    sender: PeerBytes,
    parent: Option<Hash32>,
    steps: Bounded<u16, 3>,
    kind: Kind,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Kind {
    Idle,
    One(u8),
    Two(u8, i16),
    Named { a: u8, b: bool },
}

fn hop(kind: Kind) -> Hop {
    Hop {
        round: Round(300),
        sender: PeerBytes::new(vec![1, 2]).unwrap(),
        parent: None,
        steps: vec![1, 2].try_into().unwrap(),
        kind,
    }
}

#[test]
fn structs_are_arrays_and_variants_numbers() {
    let bytes = to_wire(&hop(Kind::Idle)).unwrap();
    assert_eq!(hex::encode(&bytes), "8519012c420102f682010200");
    assert_eq!(hex::encode(to_wire(&Kind::One(7)).unwrap()), "820107");
    assert_eq!(hex::encode(to_wire(&Kind::Two(7, -1)).unwrap()), "83020720");
    assert_eq!(
        hex::encode(to_wire(&Kind::Named { a: 1, b: true }).unwrap()),
        "82038201f5"
    );
}

#[test]
fn wire_roundtrips() {
    for kind in [
        Kind::Idle,
        Kind::One(9),
        Kind::Two(1, -300),
        Kind::Named { a: 1, b: false },
    ] {
        let value = hop(kind);
        let bytes = to_wire(&value).unwrap();
        assert_eq!(from_wire::<Hop>(&bytes, bytes.len()).unwrap(), value);
        let message = to_message(200, &value).unwrap();
        assert_eq!(message_kind(&message).unwrap(), 200);
        assert_eq!(from_message::<Hop>(&message, 1 << 10).unwrap(), value);
    }
}

#[test]
fn a_message_is_kind_and_fields() {
    assert_eq!(hex::encode(to_message(3, &(1u8, 2u8)).unwrap()), "83030102");
    assert!(matches!(to_message(3, &1u8), Err(CborError::Encode { .. })));
    assert_eq!(
        message_kind(&[0x83, 0x18, 0x03, 1, 2]),
        Err(CborError::NoMessage),
        "kind not minimal"
    );
    assert_eq!(message_kind(&[0xa1, 0, 0]), Err(CborError::NoMessage));
    assert_eq!(message_kind(&[]), Err(CborError::NoMessage));
}

#[test]
fn truncated_and_trailing_bytes_are_refused() {
    let bytes = to_wire(&hop(Kind::Two(1, 2))).unwrap();
    for cut in 0..bytes.len() {
        assert!(from_wire::<Hop>(&bytes[..cut], 1 << 10).is_err(), "cut at {cut}");
    }
    let longer = [bytes.as_slice(), &[0]].concat();
    assert!(matches!(
        from_wire::<Hop>(&longer, 1 << 10),
        Err(CborError::Decode { .. })
    ));
    let refused = from_wire::<Hop>(&bytes, bytes.len() - 1);
    assert_eq!(
        refused,
        Err(CborError::TooLong {
            len: bytes.len(),
            limit: bytes.len() - 1
        })
    );
}

#[test]
fn a_flipped_bit_never_yields_the_same_value() {
    let value = hop(Kind::Named { a: 5, b: true });
    let bytes = to_wire(&value).unwrap();
    for bit in 0..bytes.len() * 8 {
        let mut bad = bytes.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        if let Ok(other) = from_wire::<Hop>(&bad, 1 << 10) {
            assert_ne!(other, value, "bit {bit}");
        }
    }
}

#[test]
fn other_encodings_of_a_value_are_refused() {
    assert_eq!(from_wire::<(u8, u8)>(&[0x82, 1, 2], 9), Ok((1, 2)));
    let long_integer = from_wire::<(u8, u8)>(&[0x82, 0x18, 1, 2], 9);
    assert!(
        matches!(long_integer, Err(CborError::NotCanonical { offset: 1, .. })),
        "{long_integer:?}"
    );
    let indefinite = from_wire::<(u8, u8)>(&[0x9f, 1, 2, 0xff], 9);
    assert!(matches!(
        indefinite,
        Err(CborError::NotCanonical { offset: 0, .. })
    ));
    assert!(from_wire::<(u8,)>(&[0xa1, 0x00, 0x01], 9).is_err(), "a map");
}

#[test]
fn long_lists_are_refused_while_decoding() {
    assert!(from_wire::<Bounded<u8, 3>>(&[0x83, 1, 2, 3], 9).is_ok());
    let error = from_wire::<Bounded<u8, 3>>(&[0x84, 1, 2, 3, 4], 9)
        .unwrap_err()
        .to_string();
    assert!(error.contains("at most 3"), "{error}");
    let claims_much =
        from_wire::<Bounded<u64, 3>>(&[0x9b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], 9);
    assert!(matches!(claims_much, Err(CborError::Decode { .. })));
    assert!(from_wire::<BoundedBytes<2>>(&[0x43, 1, 2, 3], 9).is_err());
    assert!(from_wire::<BoundedText<2>>(&[0x63, b'a', b'b', b'c'], 9).is_err());
    let text: BoundedText<3> = from_wire(&[0x63, b'a', b'b', b'c'], 9).unwrap();
    assert_eq!(&*text, "abc");
}

#[test]
fn floats_and_maps_have_no_wire_form() {
    assert!(to_wire(&1.5f32).is_err());
    assert!(to_wire(&std::collections::BTreeMap::from([(1u8, 2u8)])).is_err());
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Stored {
    round: u64,
    job: Hash32,
    a: f64,
}

#[test]
fn stored_objects_are_dag_cbor_with_sorted_keys() {
    let value = Stored {
        round: 2,
        job: Hash32([7; 32]),
        a: 1.0,
    };
    let bytes = to_dag(&value).unwrap();
    let hash = "07".repeat(32);
    let expected = format!("a36161fb3ff0000000000000636a6f625820{hash}65726f756e6402");
    assert_eq!(hex::encode(&bytes), expected);
    assert_eq!(from_dag::<Stored>(&bytes, 99).unwrap(), value);
    assert!(from_dag::<Stored>(&[bytes.as_slice(), &[0]].concat(), 99).is_err());
    assert!(from_dag::<Stored>(&bytes, 10).is_err());
}

#[test]
fn an_unknown_key_is_not_canonical() {
    #[derive(Serialize, Deserialize, Debug)]
    struct More {
        a: u8,
        zz: u8,
    }
    #[derive(Serialize, Deserialize, Debug, PartialEq)]
    struct Less {
        a: u8,
    }
    let bytes = to_dag(&More { a: 1, zz: 2 }).unwrap();
    assert!(matches!(
        from_dag::<Less>(&bytes, 99),
        Err(CborError::NotCanonical { .. })
    ));
}

#[test]
fn ids_are_those_of_ipfs() {
    // `echo -n '{}' | ipfs dag put`: the empty map, and its well-known CID.
    assert_eq!(
        dag_cid(&[0xa0]).to_string(),
        "bafyreigbtj4x7ip5legnfznufuopl4sg4knzc2cof6duas4b3q2fy6swua"
    );
    // SHA3-256 of nothing, FIPS 202.
    assert_eq!(
        object_hash(&[]).to_hex(),
        "a7ffc6f8bf1ed76651c14756a061d662f580ff4de43b49fa82d80a4b80f8434a"
    );
}
