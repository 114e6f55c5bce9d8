"""Who may fly, and who may stop it: arming, its signature, the emergency stop, the interlock before the motors."""
