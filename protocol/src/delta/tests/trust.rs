use super::*;

const NOW: i64 = 1_704_067_200; // 2024-01-01T00:00:00Z

fn verify(change: impl Fn(&mut Delta), expect: impl Fn(&mut Expected<'_>)) -> Result<(), String> {
    let mut delta = decode(&signed(Compression::Lz4), &limits()).unwrap();
    change(&mut delta);
    let (peer, job, parent) = (peer(), job(), Hash32([5; 32]));
    let mut expected = Expected {
        peer: &peer,
        job: &job,
        round: Round(3),
        parent: &parent,
        last_sequence: Some(8),
        now: NOW,
        clock_skew: 120,
    };
    expect(&mut expected);
    delta.verify(&expected, &HashSigner).map_err(|e| e.to_string())
}

fn auth(delta: &mut Delta) -> &mut Auth {
    delta.auth.as_mut().unwrap()
}

#[test]
fn the_awaited_delta_is_accepted() {
    assert_eq!(verify(|_| (), |_| ()), Ok(()));
    assert_eq!(verify(|_| (), |e| e.last_sequence = None), Ok(()));
}

#[test]
fn another_delta_is_not() {
    let other_peer = PeerBytes::new(vec![8; 38]).unwrap();
    let delta = decode(&signed(Compression::None), &limits()).unwrap();
    let expected = Expected {
        peer: &other_peer,
        job: &job(),
        round: Round(3),
        parent: &Hash32([5; 32]),
        last_sequence: None,
        now: NOW,
        clock_skew: 120,
    };
    let error = delta.verify(&expected, &HashSigner).unwrap_err();
    assert!(matches!(error, DeltaVerifyError::Mismatch { key: "peer", .. }));
    assert_eq!(
        verify(|_| (), |e| e.round = Round(4)).unwrap_err(),
        "auth.round is 3, and 4 is awaited"
    );
    let stale = delta.verify(
        &Expected {
            peer: &peer(),
            parent: &Hash32([6; 32]),
            ..expected
        },
        &HashSigner,
    );
    assert!(matches!(
        stale,
        Err(DeltaVerifyError::Mismatch { key: "parent", .. })
    ));
}

#[test]
fn sequences_rise() {
    let message = verify(|_| (), |e| e.last_sequence = Some(9)).unwrap_err();
    assert!(message.contains("sequence 9 does not rise above 9"), "{message}");
    let resealed = verify(|d| auth(d).body.sequence = 10, |_| ());
    assert!(resealed.unwrap_err().contains("ed25519"));
}

#[test]
fn the_clock_may_be_120_seconds_off() {
    assert_eq!(verify(|_| (), |e| e.now = NOW - 120), Ok(()));
    let message = verify(|_| (), |e| e.now = NOW - 121).unwrap_err();
    assert!(message.contains("121 s ahead"), "{message}");
    assert_eq!(
        verify(|_| (), |e| e.now = NOW + 1_000_000),
        Ok(()),
        "an old delta is told by its sequence"
    );
}

#[test]
fn signatures_cover_content_and_auth() {
    assert!(
        verify(|d| d.content_hash.0[0] ^= 1, |_| ())
            .unwrap_err()
            .contains("ed25519")
    );
    assert!(
        verify(|d| auth(d).body.attestation = Attestation::Tpm2, |_| ())
            .unwrap_err()
            .contains("ed25519")
    );
    assert!(
        verify(|d| auth(d).signatures.mldsa = None, |_| ())
            .unwrap_err()
            .contains("mldsa")
    );
}

#[test]
fn both_trailers_are_needed_and_agree() {
    assert!(
        verify(|d| d.auth = None, |_| ())
            .unwrap_err()
            .contains("no auth block")
    );
    assert!(
        verify(|d| d.metadata = None, |_| ())
            .unwrap_err()
            .contains("no metadata block")
    );
    let contradicts = |d: &mut Delta| d.metadata.as_mut().unwrap().round = Some(4);
    assert_eq!(
        verify(contradicts, |_| ()).unwrap_err(),
        "metadata.round differs from auth.round"
    );
}
