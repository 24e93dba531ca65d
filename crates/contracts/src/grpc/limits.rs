//! How long calls take at most, and how large they get. What goes beyond is a precise error.

use std::time::Duration;

/// For calls that a request waits for. Routers give up after 50 ms by themselves; this ends the calls of others.
pub const LOOKUP: Duration = Duration::from_millis(250);
/// For calls that no request waits for, as long as a store has for them.
pub const REPORT: Duration = Duration::from_secs(5);
/// For sums over a whole index: hundreds of millions of blocks, read once.
pub const VERIFY: Duration = Duration::from_secs(30);
/// Between two parts of a stream that its sender has at hand: a dump, a list, a body.
pub const STALL: Duration = Duration::from_secs(10);
/// For a connection to be made, within one data centre.
pub const CONNECT: Duration = Duration::from_secs(1);
/// How often a peer is asked for a sign of life. Engines may think for minutes before an answer begins, so that
/// only this tells a call that waits from one whose adapter is gone.
pub const PING_EVERY: Duration = Duration::from_secs(2);
/// How long such a sign may take.
pub const PING_WITHIN: Duration = Duration::from_secs(3);

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// The largest request to an index: a million hashes, which is 16 million tokens with each block's hash sent.
pub const INDEX_REQUEST: usize = 8 * MIB + 64 * KIB;
/// The largest answer of an index, and the largest item of its dump: 20,000 targets with names of 128 bytes.
pub const INDEX_ANSWER: usize = 4 * MIB;
/// The largest request to the affinity store: a renewal of 65,536 conversations with ids of 100 bytes.
pub const AFFINITY_REQUEST: usize = 8 * MIB;
/// The largest answer of the affinity store.
pub const AFFINITY_ANSWER: usize = 4 * MIB;
/// The most bindings in a page of a search, or in a part of a list. A binding takes at most 1,300 bytes.
pub const PAGE: usize = 2_048;
/// The largest request to resynchronise: it names one target.
pub const FEED_REQUEST: usize = 4 * KIB;
/// The largest piece of a body, both ways.
pub const CHUNK: usize = 64 * KIB;
/// The largest part of a call to an adapter: heads hold what headers a client may send, which its listener limits
/// to less.
pub const DISPATCH_PART: usize = MIB;
/// The largest body of one request.
pub const BODY: u64 = 256 << 20;
/// What bodies may take in an adapter, all together, until their requests are sent.
pub const BODIES: u64 = 1 << 30;

/// What of one stream may be under way unread: two round trips of 1 ms at 1 Gbit/s.
pub const STREAM_WINDOW: u32 = 256 << 10;
/// The most streams over one connection: requests in flight from one router to one adapter.
pub const STREAMS: u32 = 4_096;
/// What of all streams may be under way unread. As much as of each together: otherwise clients that stop reading
/// would stop those of others.
pub const CONNECTION_WINDOW: u32 = STREAM_WINDOW * STREAMS;
/// The longest text of an error, in bytes. It travels in a header, percent-encoded.
pub const ERROR_TEXT: usize = KIB;
/// The most causes named of an error.
pub const ERROR_CAUSES: usize = 4;
/// The largest list of headers: those of errors, with their details.
pub const HEADERS: u32 = 64 << 10;
