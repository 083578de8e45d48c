//! How often VMs are sampled, and in how long recordings, so that all recorders together take no more CPU time than they may. Pure.

/// Recordings are at most so many times as long as the configuration has them because of what they cost.
const STRETCH_MAX: u32 = 4;
/// The same for VMs that sleep: the recording ends when one wakes.
pub const STRETCH_IDLE: u32 = 5;
/// What is planned with: some is for VMs that start, and for prices that rise.
const PLANNED: f64 = 0.8;
/// What sampling costs grows less than its rate: with more samples, the caches still have more of what each reads. A VM of ours took 3.8 ms a second at
/// 19 Hz, 0.8 at 4 and 0.25 at 1 on a quiet host, 5.3 and 1 at 19 and 1 on a busy one, a Linux by TCG 27 and 2.5 there (2026-11-29).
const RATE_EXPONENT: f64 = 0.8;
/// The part of a VM's share that attaching and finishing may have before its recordings become longer.
const FIXED_PART: f64 = 1.0 / 3.0;
/// Halvings of the interval in which the share of each VM is looked for.
const HALVINGS: u32 = 30;

/// What the last recording of a VM has cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Price {
    /// CPU time to attach and to finish, in seconds.
    pub fixed_s: f64,
    /// CPU time of a second of sampling, in seconds.
    pub sampling_s: f64,
    /// The rate at that time.
    pub rate_hz: u32,
}

/// What is permitted and wanted, for each VM.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Of all recorders together, in percent of a CPU.
    pub percent: f64,
    pub rate_hz: u32,
    /// The length of a recording, in seconds.
    pub seconds: f64,
}

/// How a VM is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    pub rate_hz: u32,
    /// How many times as long as others its recordings are.
    pub stretch: u32,
}

impl Limits {
    /// As it is configured.
    fn plan(&self) -> Plan {
        Plan { rate_hz: self.rate_hz, stretch: 1 }
    }
}

impl Price {
    /// What it takes of a CPU, in percent.
    fn percent(&self, plan: Plan, seconds: f64) -> f64 {
        (self.fixed(plan.stretch, seconds) + self.sampling(plan.rate_hz)) * 100.0
    }

    fn fixed(&self, stretch: u32, seconds: f64) -> f64 {
        self.fixed_s / (seconds * f64::from(stretch))
    }

    fn sampling(&self, rate_hz: u32) -> f64 {
        self.sampling_s * (f64::from(rate_hz) / f64::from(self.rate_hz.max(1))).powf(RATE_EXPONENT)
    }

    /// The most that a share, in percent of a CPU, permits.
    fn plan(&self, share: f64, limits: &Limits) -> Plan {
        if self.percent(limits.plan(), limits.seconds) <= share {
            return limits.plan();
        }
        let fits = |stretch: &u32| self.fixed(*stretch, limits.seconds) * 100.0 <= share * FIXED_PART;
        let stretch = (1..STRETCH_MAX).find(fits).unwrap_or(STRETCH_MAX);
        let fits = |rate_hz: &u32| self.percent(Plan { rate_hz: *rate_hz, stretch }, limits.seconds) <= share;
        Plan { rate_hz: (1..=limits.rate_hz).rev().find(fits).unwrap_or(1), stretch }
    }
}

/// What VMs with these prices would take of a CPU as they are configured, in percent.
pub fn wanted(prices: &[Price], limits: &Limits) -> f64 {
    prices.iter().map(|price| price.percent(limits.plan(), limits.seconds)).sum()
}

/// How the VM of `price` is recorded beside all with a known price, of `vms` in all: each has an equal share, and what some do not need the others
/// have.
pub fn plan(price: &Price, prices: &[Price], vms: usize, limits: &Limits) -> Plan {
    // Those whose price is not known yet are as the others.
    let permitted = limits.percent * PLANNED * prices.len() as f64 / vms.max(prices.len()).max(1) as f64;
    let of_share =
        |share: f64| prices.iter().map(|price| price.percent(price.plan(share, limits), limits.seconds)).sum::<f64>();
    let (mut low, mut high) = (0.0, limits.percent);
    if of_share(high) <= permitted {
        return price.plan(high, limits);
    }
    for _ in 0..HALVINGS {
        let share = (low + high) / 2.0;
        if of_share(share) <= permitted { low = share } else { high = share }
    }
    price.plan(low, limits)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { percent: 3.0, rate_hz: 19, seconds: 60.0 };

    fn price(fixed_s: f64, sampling_s: f64) -> Price {
        Price { fixed_s, sampling_s, rate_hz: 19 }
    }

    #[test]
    fn who_costs_little_is_recorded_as_configured() {
        let few = [price(0.02, 0.002); 4];
        assert_eq!(plan(&few[0], &few, 4, &LIMITS), Plan { rate_hz: 19, stretch: 1 });
        assert!((wanted(&few, &LIMITS) - 4.0 * (0.02 / 60.0 + 0.002) * 100.0).abs() < 1e-9);
        // Beside one that costs much, too.
        let all = [few[0], few[0], price(0.2, 0.05)];
        assert_eq!(plan(&all[0], &all, 3, &LIMITS), Plan { rate_hz: 19, stretch: 1 });
        let much = plan(&all[2], &all, 3, &LIMITS);
        assert!(much.rate_hz < 10, "{much:?}");
        assert!(plan(&all[2], &all[2..], 1, &LIMITS).rate_hz > much.rate_hz, "alone it has all");
    }

    /// 16 VMs of ours that compute and 4 of Linux, as they were measured on 2026-11-29.
    #[test]
    fn all_together_take_what_is_permitted() {
        let mut all = vec![price(0.027, 0.0038); 16];
        all.extend([price(0.14, 0.009), price(0.17, 0.012)].repeat(2));
        assert!(wanted(&all, &LIMITS) > 10.0);
        let plans: Vec<Plan> = all.iter().map(|price| plan(price, &all, 20, &LIMITS)).collect();
        let percent: f64 = all.iter().zip(&plans).map(|(price, plan)| price.percent(*plan, 60.0)).sum();
        assert!((2.0..=2.4).contains(&percent), "{percent}: {plans:?}");
        assert!(plans[0].rate_hz > plans[19].rate_hz && plans[19].stretch > 1, "{plans:?}");
        // A quarter of them is known.
        let known = plan(&all[0], &all[..4], 16, &LIMITS);
        assert!(known.rate_hz < 19, "{known:?}");
    }

    #[test]
    fn nothing_is_below_a_sample_a_second_and_no_price_is_too_odd() {
        for price in [price(1e9, 1e9), price(0.0, 1e9), price(1e9, 0.0)] {
            let plan = plan(&price, &[price; 3], 3, &LIMITS);
            assert_eq!(
                (plan.rate_hz == 1, plan.stretch),
                (price.sampling_s > 0.0 || price.fixed_s > 0.0, if price.fixed_s > 0.0 { 4 } else { 1 })
            );
        }
        assert_eq!(plan(&price(0.0, 0.0), &[price(0.0, 0.0)], 1, &LIMITS), Plan { rate_hz: 19, stretch: 1 });
    }
}
