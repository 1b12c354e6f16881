//! Reports: profiles, where the time of vCPUs went, and how far the edges of gaps agree.

mod agreement;
mod calls;
mod correct;
mod exits;
mod meter;
mod profile;
mod recording;
mod steal;
mod top;
mod vcpu_time;

pub use agreement::agreement;
pub use calls::calls;
pub use correct::{CorrectQuery, TakenExceedsRun, correct, correct_all};
pub use exits::{ExitsBy, exits};
pub use meter::{Gap, meter};
pub use profile::profile;
pub use recording::{dropped, missed};
pub use steal::{RARE, StealBy, StealQuery, steal, time_json};
pub use top::{top, top_thief};
pub use vcpu_time::VcpuTime;
