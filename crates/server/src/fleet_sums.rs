//! Keeps the fleet's sums ([`query::Engine::sum_up`]) up to date: now and then, and on request.

use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::Utc;
use tokio::sync::{Notify, watch};
use tracing::warn;

use crate::Server;

/// Between two sums when there is no request.
const EVERY: Duration = Duration::from_secs(60);
/// It takes at most such a part of the time.
const PART: u32 = 10;
const SHORTEST_PAUSE: Duration = Duration::from_millis(200);
/// Sums of a small store are not older, or a request waits so long for new ones.
const FRESH: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_millis(1000);

/// How good the sums are, and whether they were requested.
#[derive(Debug, Default)]
pub(crate) struct Sums {
    wanted: Notify,
    /// Until when they are good.
    made: watch::Sender<Option<Instant>>,
}

impl Server {
    /// Sums up new windows, for ever.
    pub(crate) async fn sum_up_for_ever(self: Arc<Self>) {
        loop {
            let began = Instant::now();
            match self.engine.sum_up(Utc::now()).await {
                Ok(()) => {
                    let good = began.elapsed() * 2 * PART + FRESH;
                    self.sums.made.send_replace(Some(Instant::now() + good));
                }
                Err(error) => {
                    self.metrics.store_error("sums");
                    warn!("failed to sum up new windows: {error}");
                }
            }
            tokio::time::sleep((began.elapsed() * PART).clamp(SHORTEST_PAUSE, EVERY)).await;
            // Requested or not: the next windows are there.
            let _ = tokio::time::timeout(EVERY, self.sums.wanted.notified()).await;
        }
    }

    /// Waits for sums that are not old, for a moment.
    pub(crate) async fn recent_sums(&self) {
        let mut made = self.sums.made.subscribe();
        self.sums.wanted.notify_one();
        let is_good = |until: &Option<Instant>| until.is_some_and(|until| Instant::now() < until);
        // Late or not: the answer says what it lacks.
        let _ = tokio::time::timeout(LONGEST_WAIT, made.wait_for(is_good)).await;
    }
}
