//! What a worker is to do next, and whether its VM is still there.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use api::guest::{MAX_CODES, ModuleSymbols, StackSample, UnwoundStack};
use model::{GuestCode, HostNs, VmId};
use probes::{GuestView, MemorySlot};

use super::{Answered, Log};

/// What a worker is to do.
#[derive(Debug)]
pub(super) enum Order {
    /// Tell what counts for a window.
    Tell {
        start: HostNs,
        log: Log,
        answer: Reply,
        /// For the answer: the way to ask for more.
        handle: Handle,
    },
    Symbols(SymbolOrder),
    Unwind(UnwindOrder),
    /// Look for changes.
    Wake,
}

/// The way of one answer about a VM back to its asker.
#[derive(Debug)]
pub(super) struct Reply {
    vm: VmId,
    answers: Sender<(VmId, Answered)>,
}

/// Which symbols to get.
#[derive(Debug)]
pub(super) struct SymbolOrder {
    /// The session that numbered the modules.
    pub(super) session: u32,
    pub(super) modules: Vec<u32>,
    pub(super) answer: std::sync::mpsc::SyncSender<ModuleSymbols>,
}

/// Which stacks to unwind. Without an answer the receiver sees its sender go.
#[derive(Debug)]
pub(super) struct UnwindOrder {
    pub(super) samples: Vec<StackSample>,
    /// The receiver waits no longer.
    pub(super) until: Instant,
    pub(super) answer: std::sync::mpsc::SyncSender<Vec<UnwoundStack>>,
}

/// A worker's end.
#[derive(Debug)]
pub(super) struct Inbox {
    orders: Receiver<Order>,
    shared: Arc<Shared>,
}

/// The other end. A worker ends when this is dropped.
#[derive(Debug, Clone)]
pub(super) struct Handle {
    orders: Sender<Order>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Begin of the wait for an answer.
    requested: Option<Instant>,
    /// How long the guest was waited for before anything was sampled.
    waited: Duration,
    is_gone: bool,
    /// Where its kernel says which tasks run.
    tasks: Option<Arc<GuestTasks>>,
    /// Since `Handle::new_tasks` was called.
    are_tasks_new: bool,
    /// What samples hit, for the next question; `MAX_CODES` at most.
    codes: Vec<GuestCode>,
}

/// Where a guest's kernel says which task runs on each vCPU, and where its memory lies.
#[derive(Debug)]
pub(crate) struct GuestTasks {
    /// By the vCPU's number.
    pub(crate) views: BTreeMap<u32, GuestView>,
    pub(crate) slots: Vec<MemorySlot>,
}

/// Why a worker woke up.
#[derive(Debug)]
pub(super) enum WakeReason {
    /// It has waited long enough.
    Time,
    /// It is to do this.
    Order(Order),
    /// The last receiver is gone.
    Unwanted,
}

pub(super) fn pair() -> (Handle, Inbox) {
    let (sender, orders) = channel();
    let shared = Arc::<Shared>::default();
    (Handle { orders: sender, shared: Arc::clone(&shared) }, Inbox { orders, shared })
}

impl Reply {
    pub(super) fn new(vm: VmId, answers: Sender<(VmId, Answered)>) -> Self {
        Self { vm, answers }
    }

    /// The receiver may be gone.
    pub(super) fn send(self, answer: Answered) {
        let _ = self.answers.send((self.vm, answer));
    }
}

impl Inbox {
    /// Waits for an order, or `limit`.
    pub(super) fn wait(&self, limit: Duration) -> WakeReason {
        match self.orders.recv_timeout(limit) {
            Ok(Order::Wake) | Err(RecvTimeoutError::Timeout) => WakeReason::Time,
            Ok(order) => WakeReason::Order(order),
            Err(RecvTimeoutError::Disconnected) => WakeReason::Unwanted,
        }
    }

    /// What there is to do now; `Time`: nothing.
    pub(super) fn look(&self) -> WakeReason {
        loop {
            match self.orders.try_recv() {
                Ok(Order::Wake) => {}
                Ok(order) => return WakeReason::Order(order),
                Err(TryRecvError::Empty) => return WakeReason::Time,
                Err(TryRecvError::Disconnected) => return WakeReason::Unwanted,
            }
        }
    }

    /// Whether the VM has ended: its channel may lead to another one by now.
    pub(super) fn is_gone(&self) -> bool {
        self.shared.state().is_gone
    }

    /// How long the guest has been waited for, before sampling and since the order came that waits.
    pub(super) fn waited(&self) -> Duration {
        let state = self.shared.state();
        state.requested.map_or(Duration::ZERO, |requested| state.waited + requested.elapsed())
    }

    /// What is known of its tasks from now on.
    pub(super) fn set_tasks(&self, tasks: Option<GuestTasks>) {
        let mut state = self.shared.state();
        if state.tasks.is_some() || tasks.is_some() {
            state.tasks = tasks.map(Arc::new);
            // What lies there is of a session before.
            state.codes.clear();
            state.are_tasks_new = true;
        }
    }

    /// What samples hit since the last call.
    pub(super) fn take_codes(&self) -> Vec<GuestCode> {
        std::mem::take(&mut self.shared.state().codes)
    }

    /// No waiter is left.
    pub(super) fn answered(&self) {
        self.shared.state().requested = None;
    }
}

impl Handle {
    /// The worker's own end only goes with its thread: then there is no answer.
    pub(super) fn order(&self, order: Order) {
        if let Order::Tell { log, .. } = &order {
            let mut state = self.shared.state();
            state.requested.get_or_insert(Instant::now());
            if *log == Log::GoesOn {
                // Each window of a running session has its own limit.
                state.waited = Duration::ZERO;
            }
        }
        let _ = self.orders.send(order);
    }

    pub(super) fn vm_gone(&self) {
        self.shared.state().is_gone = true;
        self.order(Order::Wake);
    }

    pub(super) fn is_gone(&self) -> bool {
        self.shared.state().is_gone
    }

    /// What is known of its tasks, if that has changed since the last call.
    pub(super) fn new_tasks(&self) -> Option<Option<Arc<GuestTasks>>> {
        let mut state = self.shared.state();
        std::mem::take(&mut state.are_tasks_new).then(|| state.tasks.clone())
    }

    /// What is known of its tasks.
    pub(super) fn tasks(&self) -> Option<Arc<GuestTasks>> {
        self.shared.state().tasks.clone()
    }

    /// A sample of the guest hit this.
    pub(super) fn add_code(&self, code: GuestCode) {
        let mut state = self.shared.state();
        // What finds no room has no name, if no look finds it.
        if state.tasks.is_some() && state.codes.len() < MAX_CODES {
            state.codes.push(code);
        }
    }

    pub(super) fn was_waited_for(&self, time: Duration) {
        self.shared.state().waited = time;
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn workers_are_woken_by_orders_and_ends() {
        let moment = Duration::from_millis(1);
        let hour = Duration::from_secs(3600);
        let (handle, inbox) = pair();
        assert!(matches!(inbox.wait(moment), WakeReason::Time));
        assert_eq!(inbox.waited(), Duration::ZERO);
        handle.was_waited_for(hour);
        let (answer, _answers) = channel();
        let tell = |log| {
            let (answer, handle) = (Reply::new(VmId(0), answer.clone()), handle.clone());
            handle.clone().order(Order::Tell { start: HostNs(1), log, answer, handle });
        };
        tell(Log::Ends);
        assert!(hour <= inbox.waited());
        assert!(matches!(inbox.wait(hour), WakeReason::Order(Order::Tell { .. })));
        inbox.answered();
        assert_eq!(inbox.waited(), Duration::ZERO);
        tell(Log::GoesOn);
        assert!(inbox.waited() < hour);
        assert!(matches!(inbox.wait(hour), WakeReason::Order(Order::Tell { .. })));
        inbox.answered();
        handle.clone().vm_gone();
        assert!(inbox.is_gone());
        assert!(matches!(inbox.wait(hour), WakeReason::Time));
        handle.clone().vm_gone();
        assert!(matches!(inbox.look(), WakeReason::Time));
        tell(Log::Ends);
        assert!(matches!(inbox.look(), WakeReason::Order(Order::Tell { .. })));
        drop(handle);
        assert!(matches!(inbox.look(), WakeReason::Unwanted));
        assert!(matches!(inbox.wait(hour), WakeReason::Unwanted));
    }
}
