//! What a live migration asks of a QEMU.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{QmpError, Session};

/// What both QEMUs of a migration get, each set explicitly: what an earlier migration left on makes the next one hang.
/// With the return path the source only gives the VM up when the destination says that it runs there.
pub const CAPABILITIES: &[(&str, bool)] = &[
    ("events", true),
    ("return-path", true),
    ("auto-converge", true),
    ("xbzrle", false),
    ("multifd", false),
    ("postcopy-ram", false),
    ("pause-before-switchover", false),
    ("x-ignore-shared", false),
];

/// QEMU says that a migration has completed a moment before it has added up the times.
const TIMES_TRIES: u32 = 20;
const TIMES_PAUSE: Duration = Duration::from_millis(50);

/// How far a migration is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Migration {
    pub state: MigrationState,
    /// From its beginning until now, or to its end.
    pub total: Duration,
    /// For how long the VM stood still.
    pub downtime: Duration,
    /// Bytes of memory that were sent.
    pub sent: u64,
    /// Bytes of memory that are still to be sent.
    pub remaining: u64,
    /// How often the guest's memory was gone through.
    pub passes: u64,
    pub reason: Option<String>,
}

/// What QEMU is doing about a migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MigrationState {
    #[default]
    None,
    /// It waits for the other side.
    Setup,
    /// Memory is sent, or the VM is being handed over.
    Active,
    /// The other side has the VM.
    Completed,
    Failed,
    Cancelled,
}

impl MigrationState {
    /// From QEMU's name of it.
    #[must_use]
    pub fn from_name(name: &str) -> Self {
        match name {
            "none" => Self::None,
            "setup" | "wait-unplug" => Self::Setup,
            "completed" => Self::Completed,
            "failed" => Self::Failed,
            "cancelled" => Self::Cancelled,
            // Also names that later versions have: it is under way.
            _ => Self::Active,
        }
    }

    /// Whether nothing more happens.
    #[must_use]
    pub fn is_over(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }
}

impl Session {
    /// Switches capabilities of migrations on and off.
    ///
    /// # Errors
    /// When QEMU refuses.
    pub fn set_capabilities(&mut self, capabilities: &[(&str, bool)]) -> Result<(), QmpError> {
        let one = |(name, state): &(&str, bool)| json!({ "capability": name, "state": state });
        let all: Vec<Value> = capabilities.iter().map(one).collect();
        self.ask("migrate-set-capabilities", Some(&json!({ "capabilities": all }))).map(drop)
    }

    /// How far the migration is.
    ///
    /// # Errors
    /// When QEMU does not answer.
    pub fn migration(&mut self) -> Result<Migration, QmpError> {
        let mut found = migration(&self.ask("query-migrate", None)?);
        for _ in 0..TIMES_TRIES {
            if found.state != MigrationState::Completed || !found.total.is_zero() {
                break;
            }
            std::thread::sleep(TIMES_PAUSE);
            found = migration(&self.ask("query-migrate", None)?);
        }
        Ok(found)
    }

    /// The address at which QEMU waits for a migration: `tcp:ADDRESS:PORT`.
    ///
    /// # Errors
    /// When it does not wait, or does not say where.
    pub fn incoming_address(&mut self) -> Result<(String, u16), QmpError> {
        address(&self.ask("query-migrate", None)?)
            .ok_or(QmpError::Garbled("it does not say where it listens for the migration"))
    }

    /// What QEMU is doing, such as `running`, `paused` or `inmigrate`.
    ///
    /// # Errors
    /// When QEMU does not answer.
    pub fn run_state(&mut self) -> Result<String, QmpError> {
        let answer = self.ask("query-status", None)?;
        let state = answer["status"].as_str().ok_or(QmpError::Garbled("it has no status"))?;
        Ok(state.chars().take(40).collect())
    }
}

fn migration(answer: &Value) -> Migration {
    let ms = |name: &str| Duration::from_millis(answer[name].as_u64().unwrap_or(0));
    let ram = |name: &str| answer["ram"][name].as_u64().unwrap_or(0);
    let reason = answer["error-desc"].as_str().map(|text| text.chars().take(300).collect());
    Migration {
        state: MigrationState::from_name(answer["status"].as_str().unwrap_or("none")),
        total: ms("total-time"),
        downtime: ms("downtime"),
        sent: ram("transferred"),
        remaining: ram("remaining"),
        passes: ram("dirty-sync-count"),
        reason,
    }
}

fn address(answer: &Value) -> Option<(String, u16)> {
    let sockets = answer["socket-address"].as_array()?;
    let inet = sockets.iter().find(|socket| socket["type"] == "inet")?;
    let port = inet["port"].as_str()?.parse().ok()?;
    Some((inet["host"].as_str()?.to_owned(), port))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn answers_of_migrations() {
        assert_eq!(migration(&json!({})), Migration::default());
        let answer = json!({ "status": "completed", "total-time": 2500, "downtime": 83, "setup-time": 4,
            "ram": { "transferred": 1000, "remaining": 0, "dirty-sync-count": 3 } });
        let found = migration(&answer);
        assert!(found.state.is_over());
        assert_eq!((found.total.as_millis(), found.downtime.as_millis()), (2500, 83));
        assert_eq!((found.sent, found.passes), (1000, 3));
        for (name, state) in
            [("device", MigrationState::Active), ("failed", MigrationState::Failed)]
        {
            assert_eq!(MigrationState::from_name(name), state);
        }
        let odd = json!({ "status": 3, "ram": [], "total-time": -1, "error-desc": "no route" });
        assert_eq!(migration(&odd).reason.as_deref(), Some("no route"));
    }

    #[test]
    fn addresses_of_incoming_migrations() {
        let inet = json!({ "type": "inet", "host": "::", "port": "49152" });
        let check = |sockets: Value, expected: Option<(&str, u16)>| {
            let found = address(&json!({ "status": "setup", "socket-address": sockets }));
            assert_eq!(found, expected.map(|(host, port)| (host.to_owned(), port)));
        };
        check(json!([{ "type": "unix", "path": "/x" }, inet]), Some(("::", 49152)));
        check(json!([{ "type": "inet", "host": "a", "port": "99999" }]), None);
        check(json!([]), None);
        check(Value::Null, None);
    }
}
