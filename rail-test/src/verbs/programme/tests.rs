use super::*;

const TO: Memory = Memory { address: 0, key: 0 };
const LIMIT: Duration = Duration::from_secs(10);

/// Memory of one end, and what it has sent.
#[derive(Default)]
struct End {
    source: Vec<u8>,
    target: Vec<u8>,
    sent: Vec<((usize, u32), Option<u32>)>,
}

impl Wire for End {
    fn fill(&mut self, at: usize, bytes: &[u8]) {
        self.source
            .resize(self.source.len().max(at + bytes.len()), 0);
        self.source[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn written(&self, at: usize, length: usize) -> Vec<u8> {
        let mut all = self.target.clone();
        all.resize(at + length, 0);
        all[at..].to_vec()
    }

    fn write(&mut self, what: (usize, u32), _: &Memory, number: Option<u32>) -> Result<(), ()> {
        self.sent.push((what, number));
        Ok(())
    }
}

/// Both ends of a lane, until nothing moves; `passes` says which of a's writes arrive.
fn exchange(flow: Duration, id: LaneId, passes: fn(usize, u32) -> bool) -> (Programme, Programme) {
    let begun = Instant::now();
    let (mut a, mut b) = (Programme::new(id, flow), Programme::new(id.turned(), flow));
    let (mut end_a, mut end_b) = (End::default(), End::default());
    a.lay_out(&mut end_a, 7, 8, 5);
    b.lay_out(&mut end_b, 8, 7, 5);
    a.start(&mut end_a, &TO, begun);
    b.start(&mut end_b, &TO, begun);
    let mut now = begun;
    for nth in 0.. {
        now += Duration::from_micros(50);
        let writes = (end_a.sent.pop(), end_b.sent.pop());
        if writes == (None, None) {
            break;
        }
        if let Some((what, number)) = writes.0.filter(|(what, _)| passes(nth, what.1)) {
            carry(&end_a.source, &mut end_b.target, what);
            a.take(&mut end_a, &TO, Ended::Sent(0), now);
            if let Some(number) = number {
                b.take(&mut end_b, &TO, Ended::Received(number), now);
            }
        }
        if let Some((what, number)) = writes.1 {
            carry(&end_b.source, &mut end_a.target, what);
            b.take(&mut end_b, &TO, Ended::Sent(0), now);
            if let Some(number) = number {
                a.take(&mut end_a, &TO, Ended::Received(number), now);
            }
        }
    }
    assert!(a.is_over(LIMIT, now + LIMIT * 2) && b.is_over(LIMIT, now + LIMIT * 2));
    (a, b)
}

fn carry(from: &[u8], to: &mut Vec<u8>, (at, length): (usize, u32)) {
    let end = at + length as usize;
    to.resize(to.len().max(end), 0);
    to[at..end].copy_from_slice(&from[at..end]);
}

fn why(programme: &Programme) -> Option<Why> {
    programme.result().unwrap().err().map(|fault| fault.why)
}

#[test]
fn both_ends_measure_and_take_leave() {
    for flow in [Duration::ZERO, Duration::from_millis(5)] {
        let (a, b) = exchange(flow, LaneId(1, 1), |_, _| true);
        for end in [a, b] {
            let good = end.result().unwrap().unwrap();
            assert_eq!((good.median_ns, good.p99_ns), (50_000, 50_000));
            assert_eq!(good.rate > 0, !flow.is_zero());
            assert_eq!(end.nanos.len(), WRITES);
            assert!(end.is_taken_leave_of);
        }
    }
}

/// Else its partner would be taken for absent, and its cause for another one.
#[test]
fn a_slow_lane_sends_fewer_small_writes() {
    let mut programme = Programme::new(LaneId(0, 0), Duration::ZERO);
    let mut end = End::default();
    let begun = Instant::now();
    programme.start(&mut end, &TO, begun);
    for nth in 1..=10 {
        let now = begun + Duration::from_millis(200) * nth;
        programme.take(&mut end, &TO, Ended::Sent(0), now);
    }
    assert_eq!(programme.nanos.len(), 10);
    assert_eq!(end.sent.last().unwrap().1, Some(THE_MTU));
}

#[test]
fn lanes_between_rails_send_one_write() {
    let (a, b) = exchange(Duration::from_secs(1), LaneId(0, 1), |_, _| true);
    assert_eq!((a.nanos.len(), b.nanos.len()), (1, 1));
    assert!(a.result().unwrap().is_ok() && b.result().unwrap().is_ok());
}

#[test]
fn silence_means_what_was_answered_before() {
    let flow = Duration::from_millis(5);
    let lane = LaneId(0, 0);
    let none = exchange(flow, lane, |_, _| false);
    assert_eq!((why(&none.0), why(&none.1)), (Some(Why::NoAnswer), None));
    let large = exchange(flow, lane, |_, length| length < 1000);
    assert_eq!(why(&large.0), Some(Why::TooLarge));
    let midway = exchange(flow, lane, |nth, _| nth < 100);
    assert_eq!(why(&midway.0), Some(Why::Stopped));
}

#[test]
fn a_status_is_a_cause_and_the_first_one_counts() {
    let said = |status| {
        let mut programme = Programme::new(LaneId(0, 0), Duration::ZERO);
        let mut end = End::default();
        programme.start(&mut end, &TO, Instant::now());
        for status in [status, 5] {
            let failed = Ended::Failed {
                status,
                vendor: 129,
            };
            programme.take(&mut end, &TO, failed, Instant::now());
        }
        programme.result().unwrap().unwrap_err()
    };
    let expected = [
        (12, Why::NoAnswer),
        (10, Why::Access),
        (5, Why::Stopped),
        (4, Why::Status),
    ];
    for (status, why) in expected {
        assert_eq!(
            said(status),
            Fault {
                why,
                number: status
            }
        );
    }
}

#[test]
fn other_contents_are_seen() {
    let mut programme = Programme::new(LaneId(0, 0), Duration::ZERO);
    let mut end = End::default();
    programme.lay_out(&mut end, 7, 8, 3);
    let mut bytes = contents(8, 1024);
    carry(&bytes.clone(), &mut end.target, (0, 0));
    end.target.resize(AT_MTU, 0);
    bytes[1000] ^= 1;
    end.target.extend(bytes);
    programme.take(&mut end, &TO, Ended::Received(THE_MTU), Instant::now());
    assert_eq!(why(&programme), Some(Why::Contents));
    // A number that is no part of the test, or that this end has no room for.
    for number in [0, THE_LAST, 9] {
        let mut programme = Programme::new(LaneId(0, 0), Duration::ZERO);
        programme.take(&mut end, &TO, Ended::Received(number), Instant::now());
        assert_eq!(why(&programme), Some(Why::Contents), "{number}");
    }
}

#[test]
fn contents_differ_by_seed_and_by_place() {
    assert_ne!(contents(7, 64), contents(6, 64));
    let bytes = contents(7, 4096);
    assert!(
        bytes
            .chunks(8)
            .collect::<std::collections::BTreeSet<_>>()
            .len()
            > 500
    );
}

/// A node that lies writes right bytes for ever, and takes none.
#[test]
fn a_lane_ends_however_long_the_other_end_drips() {
    let begun = Instant::now();
    let mut own = Programme::new(LaneId(0, 0), Duration::from_millis(200));
    let mut end = End::default();
    own.lay_out(&mut end, 7, 8, 5);
    end.target = contents(8, SMALL.1);
    own.start(&mut end, &TO, begun);
    let mut now = begun;
    while !own.is_over(LIMIT, now) {
        now += LIMIT - Duration::from_millis(100);
        assert!(now < begun + LIMIT * 5, "it goes on and on");
        own.take(&mut end, &TO, Ended::Received(A_SMALL), now);
    }
    assert_eq!(why(&own), Some(Why::NoAnswer));
}
