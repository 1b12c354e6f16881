//! A guest's reports so far, boot by boot, and its silences. Pure.

use std::time::{Duration, Instant};

use api::guest::{GuestMap, GuestModule, ModuleSymbols};
use guest::{CachedMap, MAX_KEPT_BYTES, SessionError};
use model::{Budget, Clock, HostNs};

/// Boots of a guest that are distinguished, and silences that are named: a guest may make up as many as it likes.
const MAX_BOOTS: usize = 4;
const MAX_SILENCES: usize = 20;

/// While a guest is sampled, it spends at most 1/10,000 of its time on symbols.
const REST_PER_WORK: u64 = 10_000;
const SHORTEST_REST: Duration = Duration::from_secs(30);
const LONGEST_REST: Duration = Duration::from_secs(3600);

/// A guest's reports so far.
#[derive(Debug)]
pub(crate) struct GuestReport {
    /// Oldest first.
    pub(crate) boots: Vec<Boot>,
    pub(crate) silences: Vec<Silence>,
    /// When its first log began; `None`: it had none.
    pub(crate) log_began: Option<HostNs>,
    /// Why the map lacks processes that ended since.
    pub(crate) log_problem: Option<String>,
    /// CPU time that it has used for its answers, ns.
    pub(crate) cpu_ns: u64,
    /// What the session says of that so far.
    session_cpu_ns: u64,
    /// For all of that.
    room: Budget,
}

/// A guest from one boot to the next.
#[derive(Debug)]
pub(crate) struct Boot {
    pub(crate) map: CachedMap,
    pub(crate) clock: Clock,
    booted: HostNs,
    /// Earliest next query for symbols while it is sampled.
    ask_symbols_from: Instant,
}

/// A time without a report of the guest.
#[derive(Debug, Clone)]
pub(crate) struct Silence {
    pub(crate) from: HostNs,
    /// `None`: it said nothing any more.
    pub(crate) until: Option<HostNs>,
    pub(crate) reason: String,
}

impl Boot {
    /// When it booted.
    pub(crate) fn booted(&self) -> HostNs {
        self.booted
    }

    fn new(map: GuestMap, (clock, booted): (Clock, HostNs), room: &Budget, now: Instant) -> Self {
        let mut known = CachedMap::within(room.clone());
        known.add(map);
        Self { map: known, clock, booted, ask_symbols_from: now + SHORTEST_REST }
    }

    /// The next file to query for symbols while the guest is sampled.
    pub(super) fn next_module_in_time(
        &mut self,
        now: Instant,
        is_stored: impl Fn(&GuestModule) -> bool,
    ) -> Option<u32> {
        let is_time = self.ask_symbols_from <= now;
        is_time.then(|| self.map.next_module(is_stored)).flatten()
    }

    /// Keeps symbols. The guest is then left alone for a time in proportion to their cost.
    fn keep(&mut self, symbols: ModuleSymbols, now: Instant) {
        let rest = Duration::from_nanos(symbols.cpu_ns.saturating_mul(REST_PER_WORK));
        self.ask_symbols_from = now + rest.clamp(SHORTEST_REST, LONGEST_REST);
        self.map.keep(symbols);
    }
}

impl GuestReport {
    /// Nothing yet; `room` is for what all guests tell.
    pub(super) fn within(room: &Budget) -> Self {
        Self {
            boots: Vec::new(),
            silences: Vec::new(),
            log_began: None,
            log_problem: None,
            cpu_ns: 0,
            session_cpu_ns: 0,
            room: room.part(MAX_KEPT_BYTES),
        }
    }

    /// Moves all reports out.
    pub(super) fn take(&mut self) -> Self {
        let nothing = Self::within(&self.room);
        std::mem::replace(self, nothing)
    }

    /// What counts for a window that began at `start`; what ended before is forgotten.
    pub(super) fn for_window(&mut self, start: HostNs) -> Self {
        let over = self.boots.iter().skip(1).take_while(|next| next.booted() <= start).count();
        self.boots.drain(..over);
        self.silences.retain(|silence| silence.until.is_none_or(|until| start < until));
        let boots = self.boots.iter_mut().map(|boot| {
            let map = boot.map.for_window(boot.clock.to_guest(start));
            Boot { map, ..*boot }
        });
        Self {
            boots: boots.collect(),
            silences: self.silences.clone(),
            log_began: self.log_began,
            log_problem: self.log_problem.clone(),
            cpu_ns: std::mem::take(&mut self.cpu_ns),
            session_cpu_ns: 0,
            room: self.room.clone(),
        }
    }

    /// The session's thread has used so much so far.
    fn count_cpu(&mut self, session_cpu_ns: u64) {
        self.cpu_ns += session_cpu_ns.saturating_sub(self.session_cpu_ns);
        self.session_cpu_ns = session_cpu_ns;
    }

    /// A session's first answer. Its clock began when the guest booted, unless it `is_hosts`: then it booted after the last
    /// report of the boot before. An error: it is one boot too many.
    pub(super) fn begin(
        &mut self,
        map: GuestMap,
        clock: Clock,
        is_hosts: bool,
    ) -> Result<(), SessionError> {
        let is_known = self.boots.last().is_some_and(|boot| boot.map.boot_id() == map.boot_id);
        if !is_known && self.boots.len() == MAX_BOOTS {
            return Err(SessionError::Refused(format!("it booted more than {MAX_BOOTS} times")));
        }
        self.session_cpu_ns = 0;
        self.count_cpu(map.cpu_ns);
        let now = clock.to_host(map.now_ns);
        if let Some(silence) = self.silences.last_mut() {
            silence.until.get_or_insert(now);
        }
        match self.boots.last_mut() {
            Some(boot) if is_known => {
                boot.map.add_new_session(map);
                boot.clock = clock;
            }
            _ => {
                let before = |boot: &Boot| boot.clock.to_host(boot.map.reported_ns());
                let booted = match self.boots.last().filter(|_| is_hosts) {
                    Some(last) => before(last),
                    None => clock.to_host(0),
                };
                self.boots.push(Boot::new(map, (clock, booted), &self.room, Instant::now()));
            }
        }
        Ok(())
    }

    pub(super) fn add(&mut self, map: GuestMap, clock: Clock) {
        self.count_cpu(map.cpu_ns);
        if let Some(boot) = self.boots.last_mut() {
            boot.map.add(map);
            boot.clock = clock;
        }
    }

    pub(super) fn keep(&mut self, symbols: ModuleSymbols) {
        if let Some(boot) = self.boots.last_mut() {
            boot.keep(symbols, Instant::now());
        }
    }

    /// The guest does not answer any more. What follows before it answers again is the same silence.
    pub(super) fn lose(&mut self, reason: String) {
        let is_silent = self.silences.last().is_some_and(|silence| silence.until.is_none());
        let (Some(boot), false) = (self.boots.last(), is_silent) else { return };
        if self.silences.len() < MAX_SILENCES {
            let from = boot.clock.to_host(boot.map.reported_ns());
            self.silences.push(Silence { from, until: None, reason });
        } else if let Some(last) = self.silences.last_mut() {
            // It has spoken in between, now and then.
            last.until = None;
        }
    }
}

#[cfg(test)]
mod test {
    use api::guest::{GuestImage, GuestMapping};

    use super::*;

    #[test]
    fn symbols_are_requested_as_seldom_as_they_cost() {
        let module = |n: usize| GuestModule { path: format!("/{n}"), ..GuestModule::default() };
        let mapping = |module| GuestMapping { start: 1, end: 2, offset: 0, module };
        let mappings = vec![mapping(0), mapping(1)];
        let images = vec![GuestImage { mappings, ..GuestImage::default() }];
        let modules = vec![module(0), module(1)];
        let map = GuestMap { images, modules, ..GuestMap::default() };
        let began = Instant::now();
        let mut boot = Boot::new(map, (Clock::default(), HostNs(0)), &Budget::new(1 << 20), began);
        let next_at = |boot: &mut Boot, seconds| {
            boot.next_module_in_time(began + Duration::from_secs(seconds), |_| false)
        };
        assert_eq!(next_at(&mut boot, 29), None);
        assert_eq!(next_at(&mut boot, 30), Some(0));
        // 10 ms of work: a rest of 100 s.
        let symbols = ModuleSymbols { cpu_ns: 10_000_000, ..ModuleSymbols::default() };
        boot.keep(symbols, began);
        assert_eq!([99, 100].map(|seconds| next_at(&mut boot, seconds)), [None, Some(1)]);
    }

    /// What a guest tells: `BOOT@TIME` a session's first answer, `+TIME` another one, `-` nothing any more. Then its boots,
    /// each with the time of its last answer, and its silences.
    fn check_report(answers: &str, boots: &[(&str, u64)], silences: &[(u64, Option<u64>)]) {
        let clock = Clock { host_minus_guest_ns: 1000, error_ns: 0 };
        let mut reported = GuestReport::within(&Budget::new(1 << 20));
        for answer in answers.split(' ') {
            let map = |boot_id: &str, time: &str| GuestMap {
                boot_id: boot_id.to_owned(),
                now_ns: time.parse().unwrap(),
                ..GuestMap::default()
            };
            match (answer.split_once('@'), answer.split_once('+')) {
                (Some((boot, time)), _) => {
                    // One boot too many is a failed session like others.
                    if let Err(error) = reported.begin(map(boot, time), clock, false) {
                        reported.lose(error.to_string());
                    }
                }
                (_, Some((boot, time))) => reported.add(map(boot, time), clock),
                _ => reported.lose("no answer in time".to_owned()),
            }
        }
        let reported_boots: Vec<_> = reported
            .boots
            .iter()
            .map(|boot| (boot.map.boot_id(), boot.map.reported_ns()))
            .collect();
        assert_eq!(reported_boots, boots, "{answers}");
        let reported_silences: Vec<_> = reported
            .silences
            .iter()
            .map(|silence| (silence.from.0, silence.until.map(|until| until.0)))
            .collect();
        assert_eq!(reported_silences, silences, "{answers}");
    }

    #[test]
    fn reports_count_and_silences_have_times() {
        check_report("x@1 x+5", &[("x", 5)], &[]);
        check_report("- - x@1 x+5 - -", &[("x", 5)], &[(1005, None)]);
        check_report("x@1 x+5 - - x@9", &[("x", 9)], &[(1005, Some(1009))]);
        check_report("x@1 - y@3 y+5 -", &[("x", 1), ("y", 5)], &[(1001, Some(1003)), (1005, None)]);
        let boots = [("a", 1), ("b", 2), ("c", 3), ("d", 4)];
        let times = [(1001, Some(1002)), (1002, Some(1003)), (1003, Some(1004)), (1004, None)];
        check_report("a@1 - b@2 - c@3 - d@4 - e@5 -", &boots, &times);
    }

    #[test]
    fn a_window_has_its_own_time_and_the_next_one_what_goes_on() {
        let clock = Clock { host_minus_guest_ns: 1000, error_ns: 0 };
        let later = Clock { host_minus_guest_ns: 1500, ..clock };
        let mut reported = GuestReport::within(&Budget::new(1 << 20));
        let image = |id, end_ns| GuestImage { id, pid: id + 1, end_ns, ..GuestImage::default() };
        let map = |boot_id: &str, now_ns, images, cpu_ns| GuestMap {
            boot_id: boot_id.to_owned(),
            now_ns,
            images,
            cpu_ns,
            ..GuestMap::default()
        };
        let images = vec![image(0, None), image(1, Some(5)), image(2, Some(30))];
        reported.begin(map("a", 10, images, 7), clock, false).unwrap();
        reported.lose("silent".to_owned());
        let shown = |window: &GuestReport| -> (Vec<usize>, usize, u64) {
            let images =
                window.boots.iter().map(|boot| boot.map.clone().into_map().0.map.images.len());
            (images.collect(), window.silences.len(), window.cpu_ns)
        };
        assert_eq!(shown(&reported.for_window(HostNs(1010))), (vec![2], 1, 7));
        reported.begin(map("b", 20, vec![image(0, None)], 3), later, false).unwrap();
        reported.add(map("b", 40, Vec::new(), 5), later);
        // Both boots are in it, and the silence between them.
        assert_eq!(shown(&reported.for_window(HostNs(1020))), (vec![2, 1], 1, 5));
        assert_eq!(shown(&reported.for_window(HostNs(1600))), (vec![1], 0, 0));
    }

    #[test]
    fn a_boot_whose_clock_is_the_hosts_began_after_the_last_report() {
        let clock = Clock::default();
        let mut reported = GuestReport::within(&Budget::new(1 << 20));
        let map = |boot_id: &str, now_ns| GuestMap {
            boot_id: boot_id.to_owned(),
            now_ns,
            ..GuestMap::default()
        };
        reported.begin(map("a", 5000), clock, true).unwrap();
        reported.add(map("a", 6000), clock);
        reported.begin(map("b", 9000), clock, true).unwrap();
        let booted: Vec<HostNs> = reported.boots.iter().map(Boot::booted).collect();
        assert_eq!(booted, [HostNs(0), HostNs(6000)]);
        // The first one still counts for a window that began before.
        assert_eq!(reported.for_window(HostNs(5500)).boots.len(), 2);
    }
}
