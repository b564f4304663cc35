"""The faults of training: what is clipped, summed, divided, noised, counted, stopped and begun again."""

from trust.faults.training import faults_clipping, faults_noise, faults_resume, faults_steps, faults_sums

FAULTS = (
    *faults_noise.FAULTS,
    *faults_steps.FAULTS,
    *faults_sums.FAULTS,
    *faults_resume.FAULTS,
    *faults_clipping.FAULTS,
)
