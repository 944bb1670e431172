//! Provider records of the DHT: this node's own, which nobody else's crowd out, and those kept for others, in bounded
//! memory. Values are not stored.

use cid::multihash::Multihash;
use libp2p::kad::store::{Error, RecordStore};
use libp2p::kad::{ProviderRecord, Record, RecordKey};
use libp2p::{Multiaddr, PeerId};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, hash_map};
use std::iter;
use std::time::Instant;

/// Keys that this node announces.
pub(crate) const MAX_OWN: usize = 64 * 1024;
/// Bytes that others' records may take, by [`weight`].
const MAX_FOREIGN: usize = 32 << 20;
/// Others' records of one key, as the DHT replicates them.
const MAX_PER_KEY: usize = 20;
/// Addresses kept with a record, and their bytes; others are left out.
const MAX_ADDRESSES: usize = 8;
const MAX_ADDRESS: usize = 128;
/// What a record takes beside its key and its addresses, and an address beside its bytes.
const AROUND_A_RECORD: usize = 320;
const AROUND_AN_ADDRESS: usize = 64;

type Owned<'a> = fn(&'a ProviderRecord) -> Cow<'a, ProviderRecord>;

/// The records. When others' fill their room, who has most of it there loses what expires first, so that nobody who
/// announces much takes it from those who announce little.
#[derive(Debug)]
pub(crate) struct Records {
    local: PeerId,
    own: HashMap<RecordKey, ProviderRecord>,
    foreign: HashMap<RecordKey, Vec<ProviderRecord>>,
    /// Each provider's records, the one that expires first before the others.
    held: BTreeMap<PeerId, Held>,
    /// The providers by what their records take.
    by_bytes: BTreeSet<(usize, PeerId)>,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Held {
    bytes: usize,
    keys: BTreeSet<(Option<Instant>, Vec<u8>)>,
}

impl Records {
    pub(crate) fn new(local: PeerId) -> Self {
        Self {
            local,
            own: HashMap::new(),
            foreign: HashMap::new(),
            held: BTreeMap::new(),
            by_bytes: BTreeSet::new(),
            bytes: 0,
        }
    }

    /// Removes others' records that have expired; libp2p removes those alone that somebody asks for.
    pub(crate) fn sweep(&mut self, now: Instant) {
        let expired: Vec<(RecordKey, PeerId)> = self
            .foreign
            .values()
            .flatten()
            .filter(|record| record.is_expired(now))
            .map(|record| (record.key.clone(), record.provider))
            .collect();
        for (key, provider) in expired {
            self.remove_foreign(&key, &provider);
        }
    }

    fn add_own(&mut self, record: ProviderRecord) -> Result<(), Error> {
        if self.own.len() >= MAX_OWN && !self.own.contains_key(&record.key) {
            return Err(Error::MaxProvidedKeys);
        }
        self.own.insert(record.key.clone(), record);
        Ok(())
    }

    fn add_foreign(&mut self, now: Instant, mut record: ProviderRecord) -> Result<(), Error> {
        if Multihash::<64>::from_bytes(record.key.as_ref()).is_err() {
            return Err(Error::ValueTooLarge);
        }
        record.addresses.retain(|address| address.len() <= MAX_ADDRESS);
        record.addresses.truncate(MAX_ADDRESSES);
        self.remove_foreign(&record.key, &record.provider);
        self.make_place(now, &record.key)?;
        self.make_room(&record)?;
        let bytes = weight(&record);
        self.bytes += bytes;
        self.count(record.provider, |held| {
            held.bytes += bytes;
            held.keys.insert((record.expires, record.key.to_vec()));
        });
        self.foreign.entry(record.key.clone()).or_default().push(record);
        Ok(())
    }

    /// Those who announced a key first stay, while they have not expired.
    fn make_place(&mut self, now: Instant, key: &RecordKey) -> Result<(), Error> {
        let Some(records) = self
            .foreign
            .get(key)
            .filter(|records| records.len() >= MAX_PER_KEY)
        else {
            return Ok(());
        };
        let expired = records.iter().find(|record| record.is_expired(now));
        let provider = expired.ok_or(Error::MaxRecords)?.provider;
        self.remove_foreign(key, &provider);
        Ok(())
    }

    fn make_room(&mut self, record: &ProviderRecord) -> Result<(), Error> {
        let bytes = weight(record);
        while self.bytes + bytes > MAX_FOREIGN {
            let held = self.held.get(&record.provider).map_or(0, |held| held.bytes);
            let (_, peer) = self
                .by_bytes
                .last()
                .filter(|(most, _)| *most > held + bytes)
                .ok_or(Error::MaxProvidedKeys)?;
            let peer = *peer;
            let first = self.held.get(&peer).and_then(|held| held.keys.first());
            let (_, key) = first.ok_or(Error::MaxProvidedKeys)?;
            self.remove_foreign(&RecordKey::new(key), &peer);
        }
        Ok(())
    }

    fn remove_foreign(&mut self, key: &RecordKey, provider: &PeerId) {
        let hash_map::Entry::Occupied(mut entry) = self.foreign.entry(key.clone()) else {
            return;
        };
        let records = entry.get_mut();
        let Some(at) = records.iter().position(|record| record.provider == *provider) else {
            return;
        };
        let record = records.remove(at);
        if records.is_empty() {
            entry.remove();
        }
        let bytes = weight(&record);
        self.bytes -= bytes;
        self.count(record.provider, |held| {
            held.bytes -= bytes;
            held.keys.remove(&(record.expires, record.key.to_vec()));
        });
    }

    /// Changes what is held of a provider, and its place among the others.
    fn count(&mut self, provider: PeerId, change: impl FnOnce(&mut Held)) {
        let held = self.held.entry(provider).or_default();
        self.by_bytes.remove(&(held.bytes, provider));
        change(held);
        if held.keys.is_empty() {
            self.held.remove(&provider);
        } else {
            self.by_bytes.insert((held.bytes, provider));
        }
    }
}

/// The memory that a record takes, in bytes, roughly.
fn weight(record: &ProviderRecord) -> usize {
    let addresses = record.addresses.iter().map(Multiaddr::len);
    let addresses: usize = addresses.map(|bytes| AROUND_AN_ADDRESS + bytes).sum();
    AROUND_A_RECORD + 2 * record.key.as_ref().len() + addresses
}

impl RecordStore for Records {
    type RecordsIter<'a> = iter::Empty<Cow<'a, Record>>;
    type ProvidedIter<'a> = iter::Map<hash_map::Values<'a, RecordKey, ProviderRecord>, Owned<'a>>;

    fn get(&self, _: &RecordKey) -> Option<Cow<'_, Record>> {
        None
    }

    fn put(&mut self, _: Record) -> Result<(), Error> {
        Err(Error::MaxRecords)
    }

    fn remove(&mut self, _: &RecordKey) {}

    fn records(&self) -> Self::RecordsIter<'_> {
        iter::empty()
    }

    fn add_provider(&mut self, record: ProviderRecord) -> Result<(), Error> {
        if record.provider == self.local {
            self.add_own(record)
        } else {
            self.add_foreign(Instant::now(), record)
        }
    }

    fn providers(&self, key: &RecordKey) -> Vec<ProviderRecord> {
        let foreign = self.foreign.get(key).into_iter().flatten();
        self.own.get(key).into_iter().chain(foreign).cloned().collect()
    }

    fn provided(&self) -> Self::ProvidedIter<'_> {
        self.own.values().map(Cow::Borrowed)
    }

    fn remove_provider(&mut self, key: &RecordKey, provider: &PeerId) {
        if *provider == self.local {
            self.own.remove(key);
        } else {
            self.remove_foreign(key, provider);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::behaviour::kademlia;
    use super::*;
    use crate::content::block::{RAW, cid_of};
    use libp2p::identity::Keypair;
    use std::time::Duration;

    fn key(number: u32) -> RecordKey {
        RecordKey::new(&cid_of(RAW, &number.to_le_bytes()).hash().to_bytes())
    }

    fn record(number: u32, provider: PeerId, expires: Instant) -> ProviderRecord {
        ProviderRecord {
            key: key(number),
            provider,
            expires: Some(expires),
            addresses: Vec::new(),
        }
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(3600)
    }

    fn counted(records: &Records) -> usize {
        records.foreign.values().flatten().map(weight).sum()
    }

    #[test]
    fn strangers_do_not_keep_a_node_from_announcing() {
        let key_pair = Keypair::generate_ed25519();
        let mut kad = kademlia(&key_pair);
        let stranger = PeerId::random();
        for number in 0..100_000 {
            let _ = kad.store_mut().add_provider(record(number, stranger, later()));
        }
        kad.start_providing(key(100_000)).unwrap();
        assert_eq!(kad.store_mut().provided().count(), 1);
        assert!(kad.store_mut().bytes <= MAX_FOREIGN);
    }

    #[test]
    fn own_announcements_have_a_bound_of_their_own() {
        let local = PeerId::random();
        let mut records = Records::new(local);
        for number in 0..MAX_OWN as u32 {
            records.add_provider(record(number, local, later())).unwrap();
        }
        records.add_provider(record(0, local, later())).unwrap();
        let refused = records.add_provider(record(MAX_OWN as u32, local, later()));
        assert!(matches!(refused, Err(Error::MaxProvidedKeys)));
        let stranger = PeerId::random();
        records.add_provider(record(1, stranger, later())).unwrap();
        assert_eq!(records.providers(&key(1)).len(), 2);
    }

    #[test]
    fn who_announces_much_makes_room_for_who_announces_little() {
        let mut records = Records::new(PeerId::random());
        let (loud, quiet) = (PeerId::random(), PeerId::random());
        let start = later();
        for number in 0..100_000 {
            let expires = start + Duration::from_millis(number.into());
            records.add_provider(record(number, quiet, expires)).unwrap();
            if number == 9 {
                break;
            }
        }
        let mut kept = 0;
        for number in 10..100_000 {
            let expires = start + Duration::from_millis(number.into());
            kept += u32::from(records.add_provider(record(number, loud, expires)).is_ok());
        }
        assert!(kept > 1000 && kept < 99_990, "{kept}");
        let other = PeerId::random();
        records.add_provider(record(0, other, later())).unwrap();
        assert_eq!(records.providers(&key(0)).len(), 2);
        assert!(
            records.providers(&key(10)).is_empty(),
            "the loud one's first record went"
        );
        assert!((0..10).all(|number| records.providers(&key(number))[0].provider == quiet));
        assert!(records.bytes <= MAX_FOREIGN);
        assert_eq!(records.bytes, counted(&records));
    }

    #[test]
    fn a_record_takes_bounded_memory() {
        let mut records = Records::new(PeerId::random());
        let provider = PeerId::random();
        let long: Multiaddr = format!("/dns4/{}/tcp/1", "a".repeat(200)).parse().unwrap();
        let short = |port| -> Multiaddr { format!("/ip4/9.9.9.9/tcp/{port}").parse().unwrap() };
        let mut with_addresses = record(1, provider, later());
        with_addresses.addresses = iter::once(long).chain((0..100).map(short)).collect();
        records.add_provider(with_addresses).unwrap();
        let kept = records.providers(&key(1)).remove(0).addresses;
        assert_eq!(kept, (0..MAX_ADDRESSES).map(short).collect::<Vec<_>>());
        for bad in [Vec::new(), vec![7; 32], vec![0; 1 << 20]] {
            let mut named = record(1, provider, later());
            named.key = RecordKey::new(&bad);
            assert!(records.add_provider(named).is_err());
        }
        assert_eq!(records.foreign.len(), 1);
    }

    #[test]
    fn what_has_expired_goes() {
        let mut records = Records::new(PeerId::random());
        let now = Instant::now();
        for number in 0..10 {
            let expires = now + Duration::from_secs(u64::from(number));
            records
                .add_provider(record(number, PeerId::random(), expires))
                .unwrap();
        }
        records.sweep(now + Duration::from_secs(4));
        assert_eq!(records.foreign.len(), 5);
        assert_eq!(records.bytes, counted(&records));
        records.sweep(now + Duration::from_secs(20));
        assert_eq!(
            (records.bytes, records.held.len(), records.by_bytes.len()),
            (0, 0, 0)
        );
        // A key that is full of them takes another.
        for _ in 0..MAX_PER_KEY {
            records.add_provider(record(0, PeerId::random(), now)).unwrap();
        }
        let fresh = PeerId::random();
        records.add_provider(record(0, fresh, later())).unwrap();
        let held = records.providers(&key(0));
        assert!(held.len() <= MAX_PER_KEY && held.iter().any(|record| record.provider == fresh));
    }

    #[test]
    fn a_record_that_is_renewed_counts_once() {
        let mut records = Records::new(PeerId::random());
        let provider = PeerId::random();
        for _ in 0..3 {
            records.add_provider(record(1, provider, later())).unwrap();
        }
        assert_eq!(records.providers(&key(1)).len(), 1);
        assert_eq!(records.bytes, counted(&records));
        records.remove_provider(&key(1), &provider);
        assert_eq!(records.bytes, 0);
    }
}
